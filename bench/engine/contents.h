// SPDX-License-Identifier: MIT
// What the BOs of a benchmark hold: seeded bytes that nothing can shrink, with runs of zeros between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pipeline/checksum/checksum.h"

namespace sluice::bench {

// The BOs of one GPU. Sizes in bytes.
struct Contents {
  std::vector<std::uint64_t> bo_bytes;
  double zero_share = 0;             // of all bytes, 0 to 1
  std::uint64_t zero_run_bytes = 0;  // zeros and data come in runs of this length; used when zero_share > 0
  std::uint64_t seed = 1;

  std::uint64_t total_bytes() const;
};

// Writes the contents of all BOs, back to back. REQUIRES: memory.size() == contents.total_bytes(), aligned
// to 8.
void fill(std::span<std::byte> memory, const Contents& contents);

// What the bytes are known by.
inline Sum128 digest(std::span<const std::byte> bytes) {
  return sum_of(bytes);
}

}  // namespace sluice::bench
