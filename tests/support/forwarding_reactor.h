// SPDX-License-Identifier: MIT
// A reactor around another one, for tests that change a part of what it does. Thread-bound.
#pragma once

#include "pipeline/reactor/reactor.h"

namespace sluice::test {

class ForwardingReactor : public Reactor {
 public:
  void read(Op& op, int fd, std::span<std::byte> buffer, std::uint64_t offset) override {
    inner_.read(op, fd, buffer, offset);
    count();
  }
  void write(Op& op, int fd, std::span<const std::byte> buffer, std::uint64_t offset) override {
    inner_.write(op, fd, buffer, offset);
    count();
  }
  void sync_data(Op& op, int fd) override {
    inner_.sync_data(op, fd);
    count();
  }
  void poll_readable(Op& op, int fd, std::chrono::nanoseconds timeout) override {
    inner_.poll_readable(op, fd, timeout);
    count();
  }
  void poll_writable(Op& op, int fd, std::chrono::nanoseconds timeout) override {
    inner_.poll_writable(op, fd, timeout);
    count();
  }
  void post(Op& op, std::int32_t result) override {
    inner_.post(op, result);
    count();
  }
  Result<std::size_t> wait(std::span<Completion> out) override {
    auto completed = inner_.wait(out);
    count();
    return completed;
  }
  std::uint64_t now_ns() override { return inner_.now_ns(); }

 protected:
  // Borrowed.
  explicit ForwardingReactor(Reactor& inner) : inner_(inner) { count(); }

 private:
  void count() { in_flight_ = inner_.in_flight(); }

  Reactor& inner_;
};

}  // namespace sluice::test
