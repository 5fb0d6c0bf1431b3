// SPDX-License-Identifier: MIT
// What one core of this machine does: the copies of the thread that stands for a GPU's DMA engine, and
// checksums.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace sluice::bench {

// Bytes per second.
struct CoreRates {
  double copy = 0;      // from memory into a ring of the size of a lane's staging memory
  double checksum = 0;  // of memory
  double keyed = 0;     // the same with a key
};

// `count` times: `bytes` of memory, a multiple of a chunk, are worked through. Errors: ENOMEM.
Result<std::vector<CoreRates>> measure_core(std::uint64_t bytes, unsigned count);

}  // namespace sluice::bench
