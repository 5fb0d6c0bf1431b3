// SPDX-License-Identifier: MIT
// A std::mutex that clang's thread-safety analysis understands. Guarded data is declared SLUICE_GUARDED_BY;
// scripts/lint fails where it is used without the mutex.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#ifdef __clang__
#define SLUICE_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define SLUICE_THREAD_SAFETY(attribute)
#endif
#define SLUICE_GUARDED_BY(mutex) SLUICE_THREAD_SAFETY(guarded_by(mutex))
#define SLUICE_REQUIRES(mutex) SLUICE_THREAD_SAFETY(requires_capability(mutex))

namespace sluice {

class SLUICE_THREAD_SAFETY(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

 private:
  friend class Lock;
  std::mutex mutex_;
};

// Holds a mutex for as long as it lives, except between unlock() and lock().
class SLUICE_THREAD_SAFETY(scoped_lockable) Lock {
 public:
  explicit Lock(Mutex& mutex) SLUICE_THREAD_SAFETY(acquire_capability(mutex)) : lock_(mutex.mutex_) {}
  ~Lock() SLUICE_THREAD_SAFETY(release_capability()) {}
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  void unlock() SLUICE_THREAD_SAFETY(release_capability()) { lock_.unlock(); }
  void lock() SLUICE_THREAD_SAFETY(acquire_capability()) { lock_.lock(); }

  // Releases the mutex until `condition` is notified. Wakes spuriously, so call it in a loop. (A predicate
  // would be another function to the analysis, one that does not hold the mutex.)
  void wait(std::condition_variable& condition) { condition.wait(lock_); }
  // The same until `end` at most; false when `end` has come.
  bool wait_until(std::condition_variable& condition, std::chrono::steady_clock::time_point end) {
    return condition.wait_until(lock_, end) == std::cv_status::no_timeout;
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace sluice
