// SPDX-License-Identifier: MIT
// What one sum covers: a unit of a BO, 64 KiB counted from the BO's begin. So a unit keeps its sum when the
// BO moves in the file.
//
// A file's length is a unit of its own, the first. A unit ends with its BO. It is also cut at the end of a
// block of the file, because a chunk may end there. A chunk is a multiple of a block, and its sums do not
// depend on other chunks. Functions and value types; no I/O.
//
// Example (blocks of 1 MiB; BOs of 12 KiB and 1 MiB): unit 0 is the length, 1 is BO 0, 2 is the first 64 KiB
// of BO 1. BO 1 begins at 12296. So [983040, 1036280) of it, cut at 1 MiB of the file, is unit 17, and the
// rest, [1036280, 1048576), is unit 18.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "pipeline/layout.h"
#include "pipeline/slot.h"

namespace sluice {

// Bytes of a block in images we write. A chunk is a multiple of it.
inline constexpr std::uint64_t kSumBlockBytes = kMiB;

// Bytes of a unit.
inline constexpr std::uint64_t kSumUnitBytes = kZeroUnitBytes;

// Numbers of units, each in its file. Borrows the layout. Immutable; any thread.
class UnitIndex {
 public:
  // `block_bytes`: a power of two, at which units are cut in the file.
  UnitIndex(const ImageLayout& layout, std::uint64_t block_bytes);

  std::uint64_t count(std::uint32_t file) const { return counts_[file]; }
  // REQUIRES: a unit of the BO begins there.
  std::uint64_t at(std::uint32_t bo, std::uint64_t bo_offset) const {
    return first_[bo] + cuts_up_to(bo, bo_offset);
  }
  // The end, in the BO, of the unit that begins there. REQUIRES: bo_offset < bo_bytes(bo).
  std::uint64_t end_of(std::uint32_t bo, std::uint64_t bo_offset) const;
  // Whether a unit begins there. REQUIRES: bo_offset < bo_bytes(bo).
  bool is_begin(std::uint32_t bo, std::uint64_t bo_offset) const {
    return bo_offset == 0 || end_of(bo, bo_offset - 1) == bo_offset;
  }

 private:
  std::uint64_t cuts_up_to(std::uint32_t bo, std::uint64_t bo_offset) const;

  const ImageLayout* layout_;
  std::uint64_t block_bytes_;
  std::vector<std::uint64_t> first_;   // by BO
  std::vector<std::uint64_t> counts_;  // by file
};

// The part of a chunk that one sum covers.
struct SumRange {
  std::uint64_t begin = 0;  // in the chunk, bytes
  std::uint64_t end = 0;
  std::uint64_t index = 0;  // of the sum in its table
  std::uint32_t bo = Piece::kHeader;
  std::uint64_t bo_offset = 0;
};

// All of a chunk, in file order, without allocating:
//   for (SumRangeCursor at(layout, units, chunk); at.next(range);) ...
class SumRangeCursor {
 public:
  // Borrows both. REQUIRES: a chunk ends where a block does that units are cut at, or with its file.
  SumRangeCursor(const ImageLayout& layout, const UnitIndex& units, const Chunk& chunk)
      : units_(units), chunk_bytes_(chunk.length), pieces_(layout.pieces(chunk)) {}

  bool next(SumRange& range);

 private:
  const UnitIndex& units_;
  std::uint64_t chunk_bytes_;
  std::uint64_t at_ = 0;
  ImageLayout::PieceCursor pieces_;
  Piece piece_;  // the rest of it
};

// Calls `take` with each unit of a file.
template <class Take>
void each_unit(const ImageLayout& layout, const UnitIndex& units, std::uint32_t file, Take take) {
  SumRangeCursor ranges(layout, units, Chunk{0, 0, layout.file_bytes(file), file});
  for (SumRange range; ranges.next(range);) take(range);
}

}  // namespace sluice
