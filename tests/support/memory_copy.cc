// SPDX-License-Identifier: MIT
#include "support/memory_copy.h"

#include <algorithm>
#include <cstring>

namespace sluice::test {

void move_chunk(Direction direction, const ImageLayout& layout, BoList& bos, Slot& slot) {
  const std::uint64_t payload_bytes = layout.payload_bytes(slot.chunk.file);
  if (direction == Direction::Restore) {
    for (std::size_t unit = 0; unit < slot.zero_units.size(); ++unit) {
      const std::uint64_t begin = unit * kZeroUnitBytes;
      if (!slot.zero_units[unit] || begin >= slot.chunk.length) continue;
      std::memset(&slot.buffer[begin], 0, std::min(kZeroUnitBytes, slot.chunk.length - begin));
    }
  }
  Piece piece;
  for (auto at = layout.pieces(slot.chunk); at.next(piece);) {
    std::byte* const staged = &slot.buffer[piece.buffer_offset];
    if (piece.is_header()) {
      if (direction == Direction::Dump) {
        std::memcpy(staged, reinterpret_cast<const std::byte*>(&payload_bytes) + piece.bo_offset,
                    piece.length);
      }
    } else if (direction == Direction::Dump) {
      std::memcpy(staged, &bos[piece.bo][piece.bo_offset], piece.length);
    } else {
      std::memcpy(&bos[piece.bo][piece.bo_offset], staged, piece.length);
    }
  }
}

std::vector<std::uint64_t> sizes_of(const BoList& bos) {
  std::vector<std::uint64_t> sizes;
  sizes.reserve(bos.size());
  for (const Bytes& bo : bos) sizes.push_back(bo.size());
  return sizes;
}

}  // namespace sluice::test
