// SPDX-License-Identifier: MIT
// Layout: pieces tile every chunk, in file order, and say the right BO.
#include "pipeline/layout.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/units.h"

namespace sluice {
namespace {

ImageLayout layout_of(const std::vector<std::uint64_t>& sizes, std::uint64_t chunk_bytes) {
  return std::move(ImageLayout::make(sizes, chunk_bytes)).value();
}

std::vector<Piece> pieces_of(const ImageLayout& layout, std::uint64_t chunk) {
  std::vector<Piece> pieces;
  Piece piece;
  for (auto at = layout.pieces(layout.chunk(chunk)); at.next(piece);) pieces.push_back(piece);
  return pieces;
}

TEST(Layout, NoBosIsTheHeaderAlone) {
  const ImageLayout layout = layout_of({}, 4 * kMiB);
  EXPECT_EQ(layout.file_bytes(), 8U);
  EXPECT_EQ(layout.payload_bytes(), 0U);
  ASSERT_EQ(layout.chunk_count(), 1U);
  EXPECT_EQ(layout.chunk(0).length, 8U);
  EXPECT_EQ(pieces_of(layout, 0), (std::vector<Piece>{{Piece::kHeader, 0, 0, 8}}));
}

// The worked example of layout.h.
TEST(Layout, ThreeBosOverThreeChunks) {
  const ImageLayout layout = layout_of({12 * kKiB, 10 * kMiB, 4 * kKiB}, 4 * kMiB);
  ASSERT_EQ(layout.chunk_count(), 3U);
  EXPECT_EQ(pieces_of(layout, 0),
            (std::vector<Piece>{{Piece::kHeader, 0, 0, 8}, {0, 0, 8, 12288}, {1, 0, 12296, 4182008}}));
  EXPECT_EQ(pieces_of(layout, 1), (std::vector<Piece>{{1, 4182008, 0, 4 * kMiB}}));
  EXPECT_EQ(layout.chunk(2).length, 2113544U);
  EXPECT_EQ(layout.chunk(2).length % 4096, 8U);
  EXPECT_EQ(pieces_of(layout, 2), (std::vector<Piece>{{1, 8376312, 0, 2109448}, {2, 0, 2109448, 4096}}));
  EXPECT_EQ(layout.chunks_of_bo(0), 1U);
  EXPECT_EQ(layout.chunks_of_bo(1), 3U);
  EXPECT_EQ(layout.chunks_of_bo(2), 1U);
}

TEST(Layout, EmptyBosYieldNoPiece) {
  const ImageLayout layout = layout_of({0, 16, 0, 0, 8, 0}, 16);
  ASSERT_EQ(layout.chunk_count(), 2U);
  EXPECT_EQ(pieces_of(layout, 0), (std::vector<Piece>{{Piece::kHeader, 0, 0, 8}, {1, 0, 8, 8}}));
  EXPECT_EQ(pieces_of(layout, 1), (std::vector<Piece>{{1, 8, 0, 8}, {4, 0, 8, 8}}));
}

TEST(Layout, AFileThatFillsItsLastChunk) {
  const ImageLayout layout = layout_of({4088}, 4096);
  ASSERT_EQ(layout.chunk_count(), 1U);
  EXPECT_EQ(layout.chunk(0).length, 4096U);
}

TEST(Layout, AHugeBoIsArithmetic) {
  const ImageLayout layout = layout_of({1024 * kGiB}, 4 * kMiB);
  EXPECT_EQ(layout.chunk_count(), 262145U);
  EXPECT_EQ(pieces_of(layout, 262144), (std::vector<Piece>{{0, 1024 * kGiB - 8, 0, 8}}));
}

TEST(Layout, AFileForEachBoBeginsWithAHeaderAndAChunkOfItsOwn) {
  const std::vector<std::uint64_t> sizes{8, 40, 0, 24};
  const ImageLayout layout = std::move(ImageLayout::make_file_per_bo(sizes, 16)).value();
  ASSERT_EQ(layout.file_count(), 4U);
  EXPECT_EQ(layout.all_payload_bytes(), 72U);
  EXPECT_EQ(layout.all_file_bytes(), 104U);
  EXPECT_EQ(layout.file_bytes(1), 48U);
  EXPECT_EQ(layout.payload_bytes(1), 40U);
  EXPECT_EQ(layout.chunks_of_file(1), 3U);
  ASSERT_EQ(layout.chunk_count(), 7U);
  EXPECT_EQ(pieces_of(layout, 0), (std::vector<Piece>{{Piece::kHeader, 0, 0, 8}, {0, 0, 8, 8}}));
  EXPECT_EQ(layout.chunk(3).file, 1U);
  EXPECT_EQ(layout.chunk(3).file_offset, 32U);
  EXPECT_EQ(pieces_of(layout, 3), (std::vector<Piece>{{1, 24, 0, 16}}));
  EXPECT_EQ(layout.chunk(4).length, 8U);  // of a BO without contents: a header alone
  EXPECT_EQ(pieces_of(layout, 4), (std::vector<Piece>{{Piece::kHeader, 0, 0, 8}}));
  EXPECT_EQ(pieces_of(layout, 6), (std::vector<Piece>{{3, 8, 0, 16}}));
}

TEST(Layout, NoBosAndAFileForEachIsNothing) {
  const ImageLayout layout = std::move(ImageLayout::make_file_per_bo({}, 16)).value();
  EXPECT_EQ(layout.file_count(), 0U);
  EXPECT_EQ(layout.chunk_count(), 0U);
}

TEST(Layout, RefusesWhatNoFileHolds) {
  const std::vector<std::uint64_t> too_much{INT64_MAX, 1};
  EXPECT_EQ(ImageLayout::make(too_much, 4096).error().err, EOVERFLOW);
  const std::vector<std::uint64_t> wraps{UINT64_MAX, UINT64_MAX};
  EXPECT_EQ(ImageLayout::make(wraps, 4096).error().err, EOVERFLOW);
}

TEST(Layout, RefusesChunksThatAreNoPowerOfTwoAboveTheHeader) {
  for (const std::uint64_t chunk_bytes : {0U, 1U, 8U, 24U, 4095U}) {
    EXPECT_EQ(ImageLayout::make({}, chunk_bytes).error().err, EINVAL) << chunk_bytes;
  }
}

}  // namespace
}  // namespace sluice
