// SPDX-License-Identifier: MIT
// One timed transfer of any kind and its cost. Plain value.
#pragma once

#include <cstdint>

namespace sluice::bench {

struct Sample {
  std::uint64_t bytes = 0;  // moved, as the caller of the transfer counts them
  double seconds = 0;       // until durable
  double cpu_seconds =
      0;  // user and system time of this process, io-wq workers included, without dma_cpu_seconds
  double dma_cpu_seconds = 0;  // of threads that play hardware

  double gbps() const {
    return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
  }  // 10^9 bytes/s
  double cpu_seconds_per_gb() const {
    return bytes > 0 ? cpu_seconds / (static_cast<double>(bytes) / 1e9) : 0;
  }
};

}  // namespace sluice::bench
