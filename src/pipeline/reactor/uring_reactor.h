// SPDX-License-Identifier: MIT
// Reactor over io_uring. Only uring_reactor.cc includes liburing.h.
//
// SINGLE_ISSUER + DEFER_TASKRUN (Linux 6.1) if available, COOP_TASKRUN (5.19), else plain; works down to
// 5.10. Registered buffers if memlock allows. Rings are made only in lane threads, after unshare(CLONE_FS):
// io-wq workers then share nothing that makes the host's setns(CLONE_NEWNS) fail. The destructor closes the
// ring after everything in flight has come back (asserted), so no worker touches the buffers afterwards.
//
// io-wq workers belong to the thread that submitted, not to the ring: idle ones stay for up to five seconds
// after the ring is closed. The exit of the submitting thread ends them. The kernel waits there for each,
// before a join of that thread returns, so a lane leaves none behind. One may still be listed in
// /proc/self/task for the instant that its own exit takes.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "pipeline/reactor/reactor.h"

namespace sluice {

class UringReactor final : public Reactor {
 public:
  // `entries` >= Ops that may be in flight at once. Errors: ENOSYS, EPERM, EACCES if io_uring is refused
  // (sysctl, seccomp), ENOMEM if memlock forbids even the ring.
  static Result<std::unique_ptr<UringReactor>> make(unsigned entries);
  ~UringReactor() override;

  // Registers `memory` as a fixed buffer; reads and writes within it use it from then on. A refusal is no
  // failure of the lane: returns the reason for a note, and plain buffers are used.
  Result<void> register_buffer(std::span<std::byte> memory);

  // Which of the requested io_uring features the kernel has: "SINGLE_ISSUER, DEFER_TASKRUN".
  std::string features() const;

  void read(Op& op, int fd, std::span<std::byte> buffer, std::uint64_t offset) override;
  void write(Op& op, int fd, std::span<const std::byte> buffer, std::uint64_t offset) override;
  void sync_data(Op& op, int fd) override;
  void poll_readable(Op& op, int fd, std::chrono::nanoseconds timeout) override;
  void poll_writable(Op& op, int fd, std::chrono::nanoseconds timeout) override;
  void post(Op& op, std::int32_t result) override;
  Result<std::size_t> wait(std::span<Completion> out) override;
  std::uint64_t now_ns() override;

 private:
  struct Impl;
  explicit UringReactor(std::unique_ptr<Impl> impl);
  bool start(Op& op, std::size_t cqes);
  struct MoveCodes {  // the kernel's codes, for any memory and for registered
    int plain, fixed;
  };
  void move(Op& op, int fd, std::span<const std::byte> buffer, std::uint64_t offset, MoveCodes codes);
  void poll(Op& op, int fd, unsigned events, std::chrono::nanoseconds timeout);
  std::unique_ptr<Impl> impl_;
};

// A UringReactor, or a ThreadReactor if io_uring is refused. `note` stays empty, or says in one line what is
// unavailable and why: io_uring itself, or registered buffers. Errors: those of ThreadReactor::make.
Result<std::unique_ptr<Reactor>> make_reactor(unsigned entries, std::span<std::byte> arena,
                                              std::string& note);

}  // namespace sluice
