// SPDX-License-Identifier: MIT
#include "engine/contents.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "base/units.h"

namespace sluice::bench {

std::uint64_t Contents::total_bytes() const {
  return std::accumulate(bo_bytes.begin(), bo_bytes.end(), std::uint64_t{0});
}

void fill(std::span<std::byte> memory, const Contents& contents) {
  std::uint64_t state = contents.seed * 0x9e3779b97f4a7c15 + 1;
  for (std::size_t at = 0; at < memory.size(); at += sizeof state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(&memory[at], &state, std::min(sizeof state, memory.size() - at));
  }
  if (contents.zero_share <= 0) return;
  // Exactly the share, of runs chosen by the seed.
  const std::uint64_t runs = div_ceil(memory.size(), contents.zero_run_bytes);
  std::vector<std::uint64_t> order(runs);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937_64(contents.seed));
  order.resize(static_cast<std::size_t>(static_cast<double>(runs) * contents.zero_share + 0.5));
  for (const std::uint64_t run : order) {
    const std::uint64_t begin = run * contents.zero_run_bytes;
    std::memset(&memory[begin], 0, std::min<std::uint64_t>(contents.zero_run_bytes, memory.size() - begin));
  }
}

}  // namespace sluice::bench
