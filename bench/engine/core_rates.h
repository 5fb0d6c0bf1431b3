// SPDX-License-Identifier: MIT
// What one core of this machine does: the copies of the thread that stands for a GPU's DMA engine, and
// checksums.
#pragma once

#include <cstdint>

#include "pipeline/result.h"

namespace sluice::bench {

// Bytes per second.
struct CoreRates {
  double copy = 0;      // from memory into a ring of the size of a lane's staging memory
  double checksum = 0;  // of memory
};

// `bytes` of memory are worked through once: a multiple of a chunk. Errors: ENOMEM.
Result<CoreRates> measure_core(std::uint64_t bytes);

}  // namespace sluice::bench
