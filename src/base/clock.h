// SPDX-License-Identifier: MIT
// The clock for deadlines. It stops while the machine sleeps, and nobody can set it.
#pragma once

#include <cstdint>
#include <ctime>

namespace sluice {

inline constexpr std::int64_t kNsPerSecond = 1'000'000'000;

inline std::uint64_t monotonic_ns() {
  timespec now{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec * kNsPerSecond + now.tv_nsec);
}

}  // namespace sluice
