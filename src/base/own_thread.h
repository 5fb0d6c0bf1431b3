// SPDX-License-Identifier: MIT
// A thread whose stack size we choose. A std::thread's is RLIMIT_STACK at program start: gigabytes of it do
// not fit under RLIMIT_AS, or without overcommit.
#pragma once

#include <pthread.h>

#include <cassert>
#include <cstddef>
#include <functional>
#include <utility>

#include "base/result.h"

namespace sluice {

inline constexpr std::size_t kStackBytes = std::size_t{1}
                                           << 20;  // our threads need less than an eighth of it

// Move-only. Must be joined before it is destroyed.
class OwnThread {
 public:
  // Runs `body`, which must not throw. Errors: EAGAIN, about Topic::Threads, if the kernel makes no more
  // threads for us; ENOMEM without address space for the stack, or memory.
  static Result<OwnThread> start(std::function<void()> body);

  OwnThread() = default;  // no thread
  OwnThread(OwnThread&& other) noexcept
      : thread_(other.thread_), joinable_(std::exchange(other.joinable_, false)) {}
  OwnThread& operator=(OwnThread&&) = delete;
  ~OwnThread() { assert(!joinable_); }

  bool joinable() const { return joinable_; }
  // REQUIRES: joinable().
  void join();

 private:
  explicit OwnThread(pthread_t thread) : thread_(thread), joinable_(true) {}
  pthread_t thread_{};
  bool joinable_ = false;
};

}  // namespace sluice
