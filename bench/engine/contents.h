// SPDX-License-Identifier: MIT
// The contents of a benchmark's BOs: seeded incompressible bytes, with runs of zeros between them.
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
  std::uint64_t zero_run_bytes = 0;  // length of the runs of zeros and of data; used if zero_share > 0
  std::uint64_t seed = 1;
  std::uint64_t skipped_bytes = 0;  // of the seed's bytes, at the begin; a multiple of 8. Zeros stay in place

  std::uint64_t total_bytes() const;
};

// A part of the contents of all BOs, back to back. Bytes.
struct ContentRange {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

// The unit of changes: ranges that change begin at multiples of it and consist of whole ones.
inline constexpr std::uint64_t kChangeBytes = 1 << 20;

// `share` of `total_bytes`, in runs of `run_bytes` (the last is shorter) chosen by the seed, ascending and
// separate. REQUIRES: share from 0 to 1, run_bytes a multiple of kChangeBytes.
std::vector<ContentRange> some_ranges(std::uint64_t total_bytes, double share, std::uint64_t run_bytes,
                                      std::uint64_t seed);

// Changes some bytes in every 64 KiB of the ranges. REQUIRES: aligned to 8.
void change(std::span<std::byte> memory, std::span<const ContentRange> ranges, std::uint64_t seed);

// Writes the contents of all BOs, back to back. REQUIRES: memory.size() == contents.total_bytes(), aligned
// to 8.
void fill(std::span<std::byte> memory, const Contents& contents);

// Identifies the bytes.
inline Sum128 digest(std::span<const std::byte> bytes) {
  return sum_of(bytes);
}

}  // namespace sluice::bench
