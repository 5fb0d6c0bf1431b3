// SPDX-License-Identifier: MIT
#include "plugin/restore/gpus/futex_lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace sluice::plugin {

namespace {

constexpr std::uint32_t kFree = 0;
constexpr std::uint32_t kTaken = 1;
constexpr std::uint32_t kAwaited = 2;

}  // namespace

bool FutexLock::lock(std::chrono::milliseconds patience) {
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
                sizeof(FutexLock) == sizeof(std::uint32_t));
  std::uint32_t free = kFree;
  if (word_.compare_exchange_strong(free, kTaken)) return true;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (word_.exchange(kAwaited) != kFree) {
    const auto left =
        std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - std::chrono::steady_clock::now())
            .count();
    if (left <= 0) return false;
    constexpr long kSecond = 1'000'000'000;
    const timespec limit{left / kSecond, left % kSecond};
    (void)::syscall(SYS_futex, &word_, FUTEX_WAIT, kAwaited, &limit, nullptr, 0);
  }
  return true;
}

void FutexLock::unlock() {
  if (word_.exchange(kFree) == kAwaited)
    (void)::syscall(SYS_futex, &word_, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace sluice::plugin
