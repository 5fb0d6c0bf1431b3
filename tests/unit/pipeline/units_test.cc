// SPDX-License-Identifier: MIT
// Units: where they begin and end, and their numbers.
#include "pipeline/checksum/units.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "support/rng.h"

namespace sluice {
namespace {

using test::Rng;

std::vector<SumRange> ranges_of(const ImageLayout& layout, const UnitIndex& units) {
  std::vector<SumRange> all;
  for (std::uint64_t i = 0; i < layout.chunk_count(); ++i) {
    const Chunk chunk = layout.chunk(i);
    SumRangeCursor ranges(layout, units, chunk);
    for (SumRange range; ranges.next(range);) all.push_back(range);
  }
  return all;
}

// The worked example of the header.
TEST(Units, AreNumberedAsTheHeaderSays) {
  const auto layout = ImageLayout::make(std::array{12 * kKiB, kMiB}, 4 * kMiB);
  const UnitIndex units(*layout, kMiB);
  EXPECT_EQ(units.count(0), 19U);
  EXPECT_EQ(units.at(0, 0), 1U);
  EXPECT_EQ(units.at(1, 0), 2U);
  EXPECT_EQ(units.at(1, 983040), 17U);
  EXPECT_EQ(units.end_of(1, 983040), 1036280U);
  EXPECT_EQ(units.at(1, 1036280), 18U);
  EXPECT_EQ(units.end_of(1, 1036280), kMiB);
}

// The numbers that are computed are those that come of counting.
TEST(Units, CoverEachByteOnceInOrderWhateverTheSizes) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const std::uint64_t chunk_bytes = std::uint64_t{1} << rng.between(12, 22);
    const std::uint64_t block_bytes = chunk_bytes >> rng.between(0, 3);
    std::vector<std::uint64_t> sizes(static_cast<std::size_t>(rng.between(0, 9)));
    const std::uint64_t granule = rng.percent(50) ? 4096 : rng.percent(50) ? 1 : 65528;
    for (std::uint64_t& bytes : sizes) bytes = rng.percent(10) ? 0 : granule * rng.between(1, kMiB / granule);
    const bool each_alone = rng.percent(30);
    const auto layout = each_alone ? ImageLayout::make_file_per_bo(sizes, chunk_bytes)
                                   : ImageLayout::make(sizes, chunk_bytes);
    ASSERT_TRUE(layout.ok());
    const UnitIndex units(*layout, block_bytes);
    std::uint64_t covered = 0;
    std::vector<std::uint64_t> next(layout->file_count());
    std::uint32_t file = 0;
    for (const SumRange& range : ranges_of(*layout, units)) {
      while (next[file] == units.count(file)) ++file;
      ASSERT_EQ(range.index, next[file]++);
      ASSERT_LT(range.begin, range.end);
      ASSERT_LE(range.end - range.begin, kSumUnitBytes);
      covered += range.end - range.begin;
      if (range.bo != Piece::kHeader) {
        ASSERT_TRUE(units.is_begin(range.bo, range.bo_offset));
        ASSERT_EQ(units.end_of(range.bo, range.bo_offset) - range.bo_offset, range.end - range.begin);
        const std::uint64_t middle = range.bo_offset + 1;
        const bool has_middle = range.end - range.begin > 1;
        ASSERT_FALSE(has_middle && units.is_begin(range.bo, middle));
      }
    }
    EXPECT_EQ(covered, layout->all_file_bytes());
    for (std::uint32_t i = 0; i < layout->file_count(); ++i) EXPECT_EQ(next[i], units.count(i));
  }
}

// What a parent's sums are for: it has moved, and most of its units are the same.
TEST(Units, OfABoThatMovesAreTheSameButThoseThatABlocksEndCuts) {
  const auto before = ImageLayout::make(std::array{8 * kMiB}, 4 * kMiB);
  const auto after = ImageLayout::make(std::array{4 * kKiB, 8 * kMiB}, 4 * kMiB);
  const UnitIndex old_units(*before, kMiB);
  const UnitIndex new_units(*after, kMiB);
  std::uint64_t same = 0;
  for (std::uint64_t at = 0; at < 8 * kMiB; at = new_units.end_of(1, at)) {
    same += old_units.is_begin(0, at) && old_units.end_of(0, at) == new_units.end_of(1, at) ? 1 : 0;
  }
  EXPECT_EQ(same, 8U * 15U);  // of 16 a block, one is cut at another place
}

}  // namespace
}  // namespace sluice
