// SPDX-License-Identifier: MIT
#include "pipeline/checksum/units.h"

#include <algorithm>

namespace sluice {

UnitIndex::UnitIndex(const ImageLayout& layout, std::uint64_t block_bytes)
    : layout_(&layout), block_bytes_(block_bytes), counts_(layout.file_count(), 1) {
  first_.reserve(layout.bo_count());
  for (std::uint32_t file = 0; file < layout.file_count(); ++file) {
    for (std::uint32_t bo = layout.first_bo(file); bo < layout.end_bo(file); ++bo) {
      first_.push_back(counts_[file]);
      const std::uint64_t bytes = layout.bo_bytes(bo);
      if (bytes > 0) counts_[file] += cuts_up_to(bo, bytes - 1) + 1;
    }
  }
}

// Places in (0, bo_offset] at which one unit ends and the next begins.
std::uint64_t UnitIndex::cuts_up_to(std::uint32_t bo, std::uint64_t bo_offset) const {
  const std::uint64_t begin = layout_->bo_begin(bo);
  const std::uint64_t of_units = bo_offset / kSumUnitBytes;
  const std::uint64_t of_blocks = (begin + bo_offset) / block_bytes_ - begin / block_bytes_;
  // Where one of the larger kind ends, one of the smaller kind does: always, or never.
  const bool together = begin % std::min(kSumUnitBytes, block_bytes_) == 0;
  return together ? std::max(of_units, of_blocks) : of_units + of_blocks;
}

std::uint64_t UnitIndex::end_of(std::uint32_t bo, std::uint64_t bo_offset) const {
  const std::uint64_t begin = layout_->bo_begin(bo);
  const std::uint64_t of_unit = align_down(bo_offset, kSumUnitBytes) + kSumUnitBytes;
  const std::uint64_t of_block = align_down(begin + bo_offset, block_bytes_) + block_bytes_ - begin;
  return std::min({of_unit, of_block, layout_->bo_bytes(bo)});
}

bool SumRangeCursor::next(SumRange& range) {
  if (at_ >= chunk_bytes_) return false;
  if (piece_.length == 0 && !pieces_.next(piece_)) return false;  // unreached: a guard
  const std::uint64_t length =
      piece_.is_header()
          ? piece_.length
          : std::min(units_.end_of(piece_.bo, piece_.bo_offset) - piece_.bo_offset, piece_.length);
  const std::uint64_t index = piece_.is_header() ? 0 : units_.at(piece_.bo, piece_.bo_offset);
  range = SumRange{at_, at_ + length, index, piece_.bo, piece_.bo_offset};
  at_ += length;
  piece_.bo_offset += length;
  piece_.length -= length;
  return true;
}

}  // namespace sluice
