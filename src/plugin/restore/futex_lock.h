// SPDX-License-Identifier: MIT
// A lock in memory that processes share, whichever namespaces they are in. A holder that dies, or is stopped,
// keeps it for a while only: who has waited long enough takes it. So it is for what stays sound when two are
// in there at once, and is better when they are not.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace sluice::plugin {

// Zero is free. Any value that somebody else has written there ends in a wait and a lock.
class FutexLock {
 public:
  // Whether its holder let it go; false: it was taken after `patience`.
  bool lock(std::chrono::milliseconds patience);
  void unlock();

 private:
  std::atomic<std::uint32_t> word_{0};  // 0 free, 1 taken, 2 taken and somebody waits
};

// Holds it for as long as it lives.
class FutexLocked {
 public:
  FutexLocked(FutexLock& lock, std::chrono::milliseconds patience) : lock_(lock) {
    (void)lock_.lock(patience);
  }
  ~FutexLocked() { lock_.unlock(); }
  FutexLocked(const FutexLocked&) = delete;
  FutexLocked& operator=(const FutexLocked&) = delete;

 private:
  FutexLock& lock_;
};

}  // namespace sluice::plugin
