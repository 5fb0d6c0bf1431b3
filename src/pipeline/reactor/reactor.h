// SPDX-License-Identifier: MIT
// The only place where a lane waits. Every completion (disk, pipe, fence, checksum) is an Op that comes back
// from wait().
//
// Three implementations: UringReactor (uring_reactor.h), ThreadReactor (thread_reactor.h, if io_uring is
// refused) and the simulator's (tests/sim). Thread-bound: made, used and destroyed by the lane's thread; only
// ThreadReactor's workers cross threads, inside it.
//
// An Op is started at most once at a time and stays owned by its slot. The reactor never allocates per Op,
// and starting never fails: an Op that cannot be started comes back from wait() as a completion with -errno.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace sluice {

struct Slot;

// One asynchronous operation of a slot. Lives in the slot; its address is the CQE's user_data.
struct Op {
  Slot* slot = nullptr;
  std::uint32_t tag = 0;   // index within the slot, for stages that run several operations at once
  bool in_flight = false;  // between start and its return from wait(); kept by the reactor

  // Used by the stage that runs the slot, not by any reactor. Here, so that resuming short I/O allocates
  // nothing.
  std::uint64_t begin = 0;  // [begin, end) of the slot's buffer is still to be done
  std::uint64_t end = 0;
  std::uint32_t stalled = 0;  // consecutive completions without progress
};

// Instead of an offset: the fd is a stream and has none.
inline constexpr std::uint64_t kStream = UINT64_MAX;

// A poll has to end some time. After this one it is simply begun again.
inline constexpr std::chrono::hours kForEver{24};

struct Completion {
  Op* op = nullptr;
  std::int32_t result = 0;  // bytes or 0, else -errno
};

class Reactor {
 public:
  virtual ~Reactor() = default;

  // pread / pwrite of `buffer` at `offset`. With kStream, a read / write of a stream: a pipe end with
  // O_NONBLOCK that polls ready. (Without data it may come back with -EAGAIN, or keep the Op until there is
  // some.) May come back short. The buffer must stay valid and untouched until the completion. Alignment
  // rules of O_DIRECT are the caller's.
  virtual void read(Op& op, int fd, std::span<std::byte> buffer, std::uint64_t offset) = 0;
  virtual void write(Op& op, int fd, std::span<const std::byte> buffer, std::uint64_t offset) = 0;

  // fdatasync of `fd`.
  virtual void sync_data(Op& op, int fd) = 0;

  // Completes with 0 when `fd` polls readable, -ETIME if that takes longer than `timeout`. The fd stays the
  // caller's. For a sync_file "readable" means signalled, not succeeded.
  virtual void poll_readable(Op& op, int fd, std::chrono::nanoseconds timeout) = 0;
  // The same for writable. A pipe whose other end is closed is both.
  virtual void poll_writable(Op& op, int fd, std::chrono::nanoseconds timeout) = 0;

  // Completes with `result` without any I/O: how a stage that works inline reports.
  virtual void post(Op& op, std::int32_t result) = 0;

  // Blocks until at least one started Op has completed; returns how many entries of `out` were filled (>= 1).
  // Handles EINTR. REQUIRES: at least one Op in flight (asserted), !out.empty(). Errors: the ring itself
  // broke (never a failed Op); then the state of the Ops is unknown and their memory must not be reused.
  virtual Result<std::size_t> wait(std::span<Completion> out) = 0;

  // CLOCK_MONOTONIC, or virtual time in the simulator.
  virtual std::uint64_t now_ns() = 0;

  // Ops started and not yet returned by wait().
  std::size_t in_flight() const { return in_flight_; }

 protected:
  std::size_t in_flight_ = 0;
};

}  // namespace sluice
