// SPDX-License-Identifier: MIT
#include "plugin/contents/left_out.h"

#include <cstdint>
#include <cstring>

namespace sluice::plugin {

Result<Submit> LeftOut::submit(Slot& slot) {
  const std::uint64_t payload_bytes = layout_.payload_bytes(slot.chunk.file);
  Piece piece;
  for (auto at = layout_.pieces(slot.chunk); at.next(piece);) {
    std::byte* const place = slot.buffer.data() + piece.buffer_offset;
    if (piece.is_header()) {
      std::memcpy(place, reinterpret_cast<const std::byte*>(&payload_bytes) + piece.bo_offset, piece.length);
    } else {
      std::memset(place, 0, static_cast<std::size_t>(piece.length));
    }
  }
  reactor_.post(slot.op(), 0);
  return Submit::Started;
}

Result<Progress> LeftOut::advance(Slot& /*slot*/, Op& /*op*/, std::int32_t /*result*/) {
  return Progress::Done;
}

}  // namespace sluice::plugin
