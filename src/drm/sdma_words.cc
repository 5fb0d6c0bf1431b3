// SPDX-License-Identifier: MIT
#include "drm/sdma_words.h"

#include <cerrno>
#include <cstdint>

#include "base/format.h"
#include "drm/sdma_hardware.h"

namespace sluice::drm {

Error copy_error(const std::string& object, const Error& error) {
  const char* remedy = "";
  if (error.err == ENOMEM)
    remedy = "; GPU or system memory is full: stop other users of it, or lower SLUICE_STAGING_SIZE [SL-C01]";
  if (error.err == ECANCELED) remedy = "; the GPU was reset: try again [SL-C02]";
  return with_remedy(explain(object, error), remedy);
}

std::string describe_bo(const ImageLayout& layout, std::uint32_t bo) {
  return formatted("BO {} ({} bytes)", bo, layout.bo_bytes(bo));
}

std::string describe(const ImageLayout& layout, const Chunk& chunk) {
  std::string text = "chunk " + std::to_string(chunk.index);
  Piece piece;
  std::uint32_t first = kNone;
  std::uint32_t last = kNone;
  for (auto at = layout.pieces(chunk); at.next(piece);) {
    if (piece.is_header()) continue;
    if (first == kNone) {
      first = piece.bo;
      text += formatted(", {} [{}, {})", describe_bo(layout, first), piece.bo_offset,
                        piece.bo_offset + piece.length);
    }
    last = piece.bo;
  }
  if (last != first) text += " to BO " + std::to_string(last);
  return text;
}

}  // namespace sluice::drm
