// SPDX-License-Identifier: MIT
// The speed of one core of this machine: the copies of the thread that replaces a GPU's DMA engine, and
// checksums.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace sluice::bench {

// Bytes per second.
struct CoreRates {
  double copy = 0;      // from memory into a ring as large as a lane's staging memory
  double checksum = 0;  // of memory
  double keyed = 0;     // the same with a key
};

// Processes `bytes` of memory, a multiple of a chunk, `count` times. Errors: ENOMEM.
Result<std::vector<CoreRates>> measure_core(std::uint64_t bytes, unsigned count);

}  // namespace sluice::bench
