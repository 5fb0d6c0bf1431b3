// SPDX-License-Identifier: MIT
// Times in nanoseconds. The clock for deadlines stops while the machine sleeps, and nobody can set it.
#pragma once

#include <cstdint>
#include <ctime>

namespace sluice {

inline constexpr std::int64_t kNsPerSecond = 1'000'000'000;

constexpr std::int64_t ns_of(const timespec& time) {
  return time.tv_sec * kNsPerSecond + time.tv_nsec;
}

inline std::int64_t now_ns(clockid_t clock) {
  timespec now{};
  (void)::clock_gettime(clock, &now);
  return ns_of(now);
}

inline std::uint64_t monotonic_ns() {
  return static_cast<std::uint64_t>(now_ns(CLOCK_MONOTONIC));
}

}  // namespace sluice
