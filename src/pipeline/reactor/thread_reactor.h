// SPDX-License-Identifier: MIT
// Reactor over a few threads with blocking pread, pwrite and poll: does the same work, but slower, if
// io_uring is refused (sysctl io_uring_disabled, seccomp, memlock). One more thread polls, so that waiting
// for fences never takes a worker from the disk. All of them block every signal; the destructor joins them.
#pragma once

#include <memory>

#include "base/result.h"
#include "pipeline/reactor/reactor.h"

namespace sluice {

class ThreadReactor final : public Reactor {
 public:
  // `workers` >= 1 reads and writes run at once; `entries` >= Ops that may be in flight at once. Errors:
  // EAGAIN if threads cannot be made, those of eventfd.
  static Result<std::unique_ptr<ThreadReactor>> make(unsigned workers, unsigned entries);
  ~ThreadReactor() override;

  void read(Op& op, int fd, std::span<std::byte> buffer, std::uint64_t offset) override;
  void write(Op& op, int fd, std::span<const std::byte> buffer, std::uint64_t offset) override;
  void sync_data(Op& op, int fd) override;
  void poll_readable(Op& op, int fd, std::chrono::nanoseconds timeout) override;
  void poll_writable(Op& op, int fd, std::chrono::nanoseconds timeout) override;
  void post(Op& op, std::int32_t result) override;
  Result<std::size_t> wait(std::span<Completion> out) override;  // never fails
  std::uint64_t now_ns() override;

 private:
  struct Impl;
  explicit ThreadReactor(std::unique_ptr<Impl> impl);
  void start(Op& op);
  void poll(Op& op, int fd, short events, std::chrono::nanoseconds timeout);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
