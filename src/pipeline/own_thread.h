// SPDX-License-Identifier: MIT
// A thread whose stack is ours to choose. std::thread's is as large as RLIMIT_STACK was when the program
// started: for gigabytes there is no room under RLIMIT_AS, or where the kernel does not overcommit.
#pragma once

#include <pthread.h>

#include <cassert>
#include <cstddef>
#include <functional>
#include <utility>

#include "base/result.h"

namespace sluice {

inline constexpr std::size_t kStackBytes = std::size_t{1} << 20;  // no thread of ours needs an eighth of it

// Move-only. Must be joined before it is destroyed.
class OwnThread {
 public:
  // Runs `body`, which must not throw. Errors: EAGAIN, about Topic::Threads, where the kernel makes no more
  // threads for us; ENOMEM where there is no address space for the stack, or no memory.
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
