// SPDX-License-Identifier: MIT
// A reactor in virtual time: seeded latency and order, short transfers, stalls, errors, a ring that breaks.
//
// Reads and writes are carried out on the real file behind the fd, but when they complete in virtual time and
// through a buffered descriptor of the simulator's own, so that any length works and the outcome depends on
// the seed alone; a stream's on the fd itself. A poll looks once, when it completes: not ready then is its
// timeout. It may inject: completion in any order, short results (of O_DIRECT files too, at odd
// lengths), EAGAIN and EINTR, one chosen errno on the n-th operation, a failing wait(). It injects no
// corruption of its own.
//
// It checks: a buffer is not changed while a write is under way; wait() is never called with nothing in
// flight; an Op is started once at a time; direct I/O is aligned; no byte is written that nobody asked for.
// What fails ends the process through test::fail() (support/seeds.h), which prints the seed. Thread-bound.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "base/unique_fd.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/reactor/reactor.h"
#include "support/rng.h"
#include "support/seeds.h"

namespace sluice::sim {

struct Faults {
  unsigned short_percent = 0;          // of reads and writes
  unsigned stall_percent = 0;          // EAGAIN or EINTR instead of a transfer
  std::uint64_t fail_op = UINT64_MAX;  // the n-th read, write or sync completes with -fail_errno
  int fail_errno = 0;
  std::uint64_t break_wait = UINT64_MAX;  // the n-th wait() fails with EIO, and so does every later one
};

class SimReactor : public Reactor {
 public:
  SimReactor(test::Rng rng, std::uint64_t latency_ns_max, const Faults& faults)
      : rng_(rng), latency_ns_max_(latency_ns_max), faults_(faults) {}

  void read(Op& op, int fd, std::span<std::byte> buffer, std::uint64_t offset) override;
  void write(Op& op, int fd, std::span<const std::byte> buffer, std::uint64_t offset) override;
  void sync_data(Op& op, int fd) override;
  void poll_readable(Op& op, int fd, std::chrono::nanoseconds timeout) override;
  void poll_writable(Op& op, int fd, std::chrono::nanoseconds timeout) override;
  void post(Op& op, std::int32_t result) override;
  Result<std::size_t> wait(std::span<Completion> out) override;
  std::uint64_t now_ns() override { return now_ns_; }

  // An operation of a simulated device: completes after a latency of its own.
  void after(Op& op, std::uint64_t latency_ns, std::int32_t result);

  // Called at the start of every wait().
  std::function<void()> on_step;

  bool fault_fired() const { return fault_fired_; }
  bool broke() const { return broke_; }
  std::uint64_t transfers() const { return transfers_; }
  std::uint64_t steps() const { return steps_; }
  // How often each byte of the file was written, by file offset; stays empty for a file that was only read.
  const std::vector<std::uint8_t>& written() const { return written_; }

 private:
  enum class Kind : std::uint8_t { Read, Write, Sync, Poll, Result };
  struct Pending {
    std::uint64_t due_ns = 0;
    std::uint64_t order = 0;  // among equals, as started
    Kind kind = Kind::Result;
    short events = 0;  // of a poll
    Op* op = nullptr;
    int fd = -1;
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::uint64_t offset = 0;
    std::int32_t result = 0;
    Sum128 sum{};  // of a write's buffer when it was started
  };

  void start(Pending pending, std::uint64_t latency_ns);
  std::int32_t carry_out(const Pending& pending);
  void poll(Op& op, int fd, short events, std::chrono::nanoseconds timeout);
  int buffered(int fd);
  void check_alignment(int fd, const void* data, std::size_t bytes, std::uint64_t offset);

  test::Rng rng_;
  std::uint64_t latency_ns_max_;
  Faults faults_;
  std::uint64_t now_ns_ = 0;
  std::uint64_t started_ = 0;
  std::uint64_t transfers_ = 0;
  std::uint64_t steps_ = 0;
  bool fault_fired_ = false;
  bool broke_ = false;
  std::vector<Pending> pending_;  // a heap, the next to complete on top
  std::map<int, UniqueFd> buffered_;
  std::vector<std::uint8_t> written_;
};

}  // namespace sluice::sim
