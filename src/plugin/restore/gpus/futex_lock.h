// SPDX-License-Identifier: MIT
// A lock in memory that processes share, across namespaces. If a holder dies or is stopped, a waiter takes
// the lock after a while. So it suits data that two holders at once cannot damage.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace sluice::plugin {

// Zero is free. Any other value, even a corrupt one, only makes lock() wait and then take it.
class FutexLock {
 public:
  // Whether the holder released it; false: it was taken after `patience`.
  bool lock(std::chrono::milliseconds patience);
  void unlock();

 private:
  std::atomic<std::uint32_t> word_{0};  // 0 free, 1 taken, 2 taken with waiters
};

// Holds it for the object's life.
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
