// SPDX-License-Identifier: MIT
#include "pipeline/chunk_walk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace sluice {
namespace {

std::vector<std::uint64_t> all_of(ChunkWalk walk) {
  std::vector<std::uint64_t> order;
  while (!walk.ended()) order.push_back(walk.next());
  return order;
}

TEST(ChunkWalk, OneCursorGoesByIndex) {
  EXPECT_EQ(all_of(ChunkWalk(5, 1)), (std::vector<std::uint64_t>{0, 1, 2, 3, 4}));
}

TEST(ChunkWalk, CursorsTakeTurnsEachInAPartOfItsOwn) {
  const std::vector<std::uint64_t> order = all_of(ChunkWalk(30, 3));
  for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i] / 10, i % 3);
  for (std::size_t i = 3; i < order.size(); ++i) EXPECT_EQ(order[i] % 10, (order[i - 3] + 1) % 10);
}

TEST(ChunkWalk, CursorsAreNotAtTheSamePlaceOfTheirParts) {
  const std::vector<std::uint64_t> order = all_of(ChunkWalk(4096, 256));
  std::vector<unsigned> at(16);
  for (std::size_t i = 0; i < 256; ++i) ++at[order[i] % 16];
  EXPECT_LE(*std::max_element(at.begin(), at.end()), 32U);
  EXPECT_GE(*std::min_element(at.begin(), at.end()), 4U);
}

TEST(ChunkWalk, EachChunkComesOnceWhateverTheirNumber) {
  for (std::uint64_t chunks = 0; chunks <= 300; ++chunks) {
    for (const std::uint32_t cursors : {1U, 2U, 3U, 16U, 63U, kMostCursors}) {
      std::vector<std::uint64_t> order = all_of(ChunkWalk(chunks, cursors));
      std::sort(order.begin(), order.end());
      std::vector<std::uint64_t> all(chunks);
      std::iota(all.begin(), all.end(), std::uint64_t{0});
      ASSERT_EQ(order, all) << chunks << " chunks, " << cursors << " cursors";
    }
  }
}

TEST(ChunkWalk, FewChunksHaveFewCursors) {
  EXPECT_EQ(cursors_for_changes(0), 1U);
  EXPECT_EQ(cursors_for_changes(31), 1U);
  EXPECT_EQ(cursors_for_changes(256), 16U);
  EXPECT_EQ(cursors_for_changes(std::uint64_t{1} << 40), kMostCursors);
}

}  // namespace
}  // namespace sluice
