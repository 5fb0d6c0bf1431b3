// SPDX-License-Identifier: MIT
#include "pipeline/layout.h"

#include <algorithm>
#include <bit>

#include "pipeline/units.h"

namespace sluice {

Result<ImageLayout> ImageLayout::make(std::span<const std::uint64_t> bo_bytes, std::uint64_t chunk_bytes) {
  if (!std::has_single_bit(chunk_bytes) || chunk_bytes <= kHeaderBytes) {
    return make_error(EINVAL, "chunk size " + std::to_string(chunk_bytes) + " is not a power of two above 8");
  }
  if (bo_bytes.size() >= UINT32_MAX) return make_error(E2BIG, "too many BOs for one pages file");
  std::vector<std::uint64_t> begins;
  begins.reserve(bo_bytes.size() + 1);
  std::uint64_t at = kHeaderBytes;
  begins.push_back(at);
  for (std::uint64_t bytes : bo_bytes) {
    if (bytes > static_cast<std::uint64_t>(INT64_MAX) - at) {
      return make_error(EOVERFLOW, "the BO sizes add up to more than a file can hold");
    }
    at += bytes;
    begins.push_back(at);
  }
  return ImageLayout(std::move(begins), chunk_bytes);
}

std::uint64_t ImageLayout::chunk_count() const {
  return div_ceil(file_bytes(), chunk_bytes_);
}

Chunk ImageLayout::chunk(std::uint64_t index) const {
  const std::uint64_t begin = index * chunk_bytes_;
  return Chunk{index, begin, std::min(chunk_bytes_, file_bytes() - begin)};
}

ImageLayout::PieceCursor::PieceCursor(const ImageLayout& layout, const Chunk& chunk)
    : layout_(&layout),
      at_(chunk.file_offset),
      end_(chunk.file_offset + chunk.length),
      begin_(chunk.file_offset),
      bo_(0) {
  if (at_ >= kHeaderBytes) {
    const auto after = std::upper_bound(layout.begins_.begin(), layout.begins_.end(), at_);
    bo_ = static_cast<std::uint32_t>(after - layout.begins_.begin() - 1);
  }
}

bool ImageLayout::PieceCursor::next(Piece& piece) {
  if (at_ >= end_) return false;
  if (at_ < kHeaderBytes) {
    piece = Piece{Piece::kHeader, at_, at_ - begin_, std::min(end_, kHeaderBytes) - at_};
  } else {
    while (layout_->begins_[bo_ + 1] <= at_) ++bo_;  // skips BOs of size 0
    const std::uint64_t bo_begin = layout_->begins_[bo_];
    piece = Piece{bo_, at_ - bo_begin, at_ - begin_, std::min(end_, layout_->begins_[bo_ + 1]) - at_};
  }
  at_ += piece.length;
  return true;
}

}  // namespace sluice
