// SPDX-License-Identifier: MIT
// Seconds between then and now.
#pragma once

#include <chrono>

namespace sluice::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace sluice::bench
