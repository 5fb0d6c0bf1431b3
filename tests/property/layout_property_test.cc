// SPDX-License-Identifier: MIT
// The pieces of all chunks tile the file exactly, in order, whatever the BO list and the chunk size.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "pipeline/layout.h"
#include "support/rng.h"

namespace sluice {
namespace {

TEST(LayoutProperty, PiecesTileTheFile) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Rng rng(seed);
    std::vector<std::uint64_t> sizes(rng.between(0, 40));
    for (std::uint64_t& size : sizes)
      size = rng.percent(20) ? 0 : rng.between(1, rng.percent(10) ? 100'000 : 300);
    const std::uint64_t chunk_bytes = std::uint64_t{16} << rng.between(0, 10);
    const ImageLayout layout = std::move(ImageLayout::make(sizes, chunk_bytes)).value();

    std::uint64_t file_offset = 0;
    std::uint32_t bo = Piece::kHeader;
    std::uint64_t bo_offset = 0;
    for (std::uint64_t index = 0; index < layout.chunk_count(); ++index) {
      const Chunk chunk = layout.chunk(index);
      ASSERT_EQ(chunk.file_offset, index * chunk_bytes);
      ASSERT_GT(chunk.length, 0U);
      std::uint64_t buffer_offset = 0;
      Piece piece;
      for (auto at = layout.pieces(chunk); at.next(piece);) {
        ASSERT_GT(piece.length, 0U);
        ASSERT_EQ(piece.buffer_offset, buffer_offset);
        if (piece.bo != bo) {  // the piece before ended its BO; those between are empty
          ASSERT_EQ(bo_offset, bo == Piece::kHeader ? (file_offset == 0 ? 0 : kHeaderBytes) : sizes[bo]);
          for (std::uint32_t skipped = bo + 1; skipped < piece.bo && bo != Piece::kHeader; ++skipped) {
            ASSERT_EQ(sizes[skipped], 0U);
          }
          bo = piece.bo;
          bo_offset = 0;
        }
        ASSERT_EQ(piece.bo_offset, bo_offset);
        ASSERT_EQ(file_offset,
                  piece.is_header() ? piece.bo_offset : layout.bo_begin(piece.bo) + piece.bo_offset);
        buffer_offset += piece.length;
        bo_offset += piece.length;
        file_offset += piece.length;
      }
      ASSERT_EQ(buffer_offset, chunk.length);
    }
    ASSERT_EQ(file_offset, layout.file_bytes());
    for (std::uint32_t i = 0; i < layout.bo_count(); ++i) {
      if (sizes[i] == 0) continue;
      const std::uint64_t last = (layout.bo_begin(i) + sizes[i] - 1) / chunk_bytes;
      ASSERT_EQ(layout.chunks_of_bo(i), last - layout.bo_begin(i) / chunk_bytes + 1);
    }
  }
}

// A file for each BO is what a layout of that BO alone is, and chunks are numbered through all of them.
TEST(LayoutProperty, AFileForEachBoIsALayoutForEachBo) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Rng rng(seed);
    std::vector<std::uint64_t> sizes(rng.between(0, 20));
    for (std::uint64_t& size : sizes) size = rng.percent(20) ? 0 : rng.between(1, 3000);
    const std::uint64_t chunk_bytes = std::uint64_t{16} << rng.between(0, 8);
    const ImageLayout all = std::move(ImageLayout::make_file_per_bo(sizes, chunk_bytes)).value();
    std::uint64_t index = 0;
    for (std::uint32_t bo = 0; bo < sizes.size(); ++bo) {
      const ImageLayout one = std::move(ImageLayout::make({&sizes[bo], 1}, chunk_bytes)).value();
      ASSERT_EQ(all.file_bytes(bo), one.file_bytes());
      ASSERT_EQ(all.chunks_of_file(bo), one.chunk_count());
      for (std::uint64_t i = 0; i < one.chunk_count(); ++i, ++index) {
        const Chunk chunk = all.chunk(index);
        const Chunk alone = one.chunk(i);
        ASSERT_EQ(chunk.index, index);
        ASSERT_EQ(chunk.file, bo);
        ASSERT_EQ(chunk.file_offset, alone.file_offset);
        ASSERT_EQ(chunk.length, alone.length);
        auto pieces = all.pieces(chunk);
        auto expected = one.pieces(alone);
        Piece piece, its;
        while (expected.next(its)) {
          ASSERT_TRUE(pieces.next(piece));
          if (!its.is_header()) its.bo = bo;
          ASSERT_EQ(piece, its);
        }
        ASSERT_FALSE(pieces.next(piece));
      }
    }
    ASSERT_EQ(index, all.chunk_count());
  }
}

}  // namespace
}  // namespace sluice
