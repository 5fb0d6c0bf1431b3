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
  const auto step = [&state] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
  };
  for (std::uint64_t at = 0; at < contents.skipped_bytes; at += sizeof state) step();
  for (std::size_t at = 0; at < memory.size(); at += sizeof state) {
    step();
    std::memcpy(&memory[at], &state, std::min(sizeof state, memory.size() - at));
  }
  if (contents.zero_share <= 0) return;
  // Exactly that share, of runs chosen by the seed.
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

std::vector<ContentRange> some_ranges(std::uint64_t total_bytes, double share, std::uint64_t run_bytes,
                                      std::uint64_t seed) {
  const auto wanted = static_cast<std::uint64_t>(static_cast<double>(total_bytes) * share + 0.5);
  std::uint64_t left = std::min(total_bytes, align_up(wanted, kChangeBytes));
  const std::uint64_t run = std::min(run_bytes, std::max(left, kChangeBytes));
  std::vector<std::uint64_t> places(div_ceil(total_bytes, run));
  std::iota(places.begin(), places.end(), std::uint64_t{0});
  std::shuffle(places.begin(), places.end(), std::mt19937_64(seed));
  std::vector<ContentRange> ranges;
  for (const std::uint64_t place : places) {
    if (left == 0) break;
    const std::uint64_t bytes = std::min({run, left, total_bytes - place * run});
    ranges.push_back({place * run, bytes});
    left -= bytes;
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const ContentRange& a, const ContentRange& b) { return a.begin < b.begin; });
  return ranges;
}

void change(std::span<std::byte> memory, std::span<const ContentRange> ranges, std::uint64_t seed) {
  const std::uint64_t flip = seed * 0x9e3779b97f4a7c15 | 1;  // never zero, and different for each seed
  for (const ContentRange& range : ranges) {
    for (std::uint64_t at = range.begin; at < range.begin + range.bytes; at += sizeof flip) {
      std::uint64_t word = 0;
      std::memcpy(&word, &memory[at], sizeof word);
      word ^= flip;
      std::memcpy(&memory[at], &word, sizeof word);
    }
  }
}

}  // namespace sluice::bench
