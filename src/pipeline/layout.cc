// SPDX-License-Identifier: MIT
#include "pipeline/layout.h"

#include <algorithm>
#include <bit>

#include "base/units.h"

namespace sluice {

Result<ImageLayout> ImageLayout::make(std::span<const std::uint64_t> bo_bytes, std::uint64_t chunk_bytes) {
  return make(bo_bytes, chunk_bytes, false);
}

Result<ImageLayout> ImageLayout::make_file_per_bo(std::span<const std::uint64_t> bo_bytes,
                                                  std::uint64_t chunk_bytes) {
  return make(bo_bytes, chunk_bytes, true);
}

Result<ImageLayout> ImageLayout::make(std::span<const std::uint64_t> bo_bytes, std::uint64_t chunk_bytes,
                                      bool file_per_bo) {
  if (!std::has_single_bit(chunk_bytes) || chunk_bytes <= kHeaderBytes) {
    return make_error(EINVAL, "chunk size " + std::to_string(chunk_bytes) + " is not a power of two above 8");
  }
  // unreached: too large
  if (bo_bytes.size() >= UINT32_MAX) return make_error(E2BIG, "too many BOs for one set of pages files");
  ImageLayout layout;
  layout.chunk_bytes_ = chunk_bytes;
  layout.bos_.reserve(bo_bytes.size());
  std::uint64_t at = kHeaderBytes;
  for (const std::uint64_t bytes : bo_bytes) {
    const std::uint64_t used = layout.all_payload_bytes_ + (bo_bytes.size() + 1) * kHeaderBytes;
    if (bytes > static_cast<std::uint64_t>(INT64_MAX) - used) {
      return make_error(EOVERFLOW, "the BO sizes add up to more than a file can hold");
    }
    layout.bos_.push_back({at, bytes});
    layout.all_payload_bytes_ += bytes;
    at += bytes;
    if (!file_per_bo) continue;
    layout.end_file(layout.bo_count() - 1, at);
    at = kHeaderBytes;
  }
  if (!file_per_bo) layout.end_file(0, at);
  return layout;
}

void ImageLayout::end_file(std::uint32_t first_bo, std::uint64_t bytes) {
  files_.push_back({bytes, chunk_count_, first_bo});
  chunk_count_ += div_ceil(bytes, chunk_bytes_);
}

std::uint64_t ImageLayout::chunks_of_file(std::uint32_t file) const {
  return div_ceil(files_[file].bytes, chunk_bytes_);
}

std::uint32_t ImageLayout::file_of(std::uint32_t bo) const {
  const auto after =
      std::upper_bound(files_.begin(), files_.end(), bo,
                       [](std::uint32_t wanted, const File& file) { return wanted < file.first_bo; });
  return static_cast<std::uint32_t>(after - files_.begin() - 1);
}

Chunk ImageLayout::chunk(std::uint64_t index) const {
  const auto after =
      std::upper_bound(files_.begin(), files_.end(), index,
                       [](std::uint64_t wanted, const File& file) { return wanted < file.first_chunk; });
  const File& file = *std::prev(after);
  const std::uint64_t begin = (index - file.first_chunk) * chunk_bytes_;
  return Chunk{index, begin, std::min(chunk_bytes_, file.bytes - begin),
               static_cast<std::uint32_t>(&file - files_.data())};
}

ImageLayout::PieceCursor::PieceCursor(const ImageLayout& layout, const Chunk& chunk)
    : layout_(&layout),
      at_(chunk.file_offset),
      end_(chunk.file_offset + chunk.length),
      begin_(chunk.file_offset),
      bo_(layout.files_[chunk.file].first_bo) {
  if (at_ < kHeaderBytes) return;
  const auto first = layout.bos_.begin() + bo_;
  const auto last = layout.bos_.begin() + layout.end_bo(chunk.file);
  const auto after = std::upper_bound(
      first, last, at_, [](std::uint64_t at, const Bo& candidate) { return at < candidate.begin; });
  bo_ = static_cast<std::uint32_t>(after - layout.bos_.begin() - 1);
}

bool ImageLayout::PieceCursor::next(Piece& piece) {
  if (at_ >= end_) return false;
  if (at_ < kHeaderBytes) {
    piece = Piece{Piece::kHeader, at_, at_ - begin_, std::min(end_, kHeaderBytes) - at_};
  } else {
    while (layout_->bos_[bo_].begin + layout_->bos_[bo_].bytes <= at_) ++bo_;  // skips BOs of size 0
    const Bo& bo = layout_->bos_[bo_];
    piece = Piece{bo_, at_ - bo.begin, at_ - begin_, std::min(end_, bo.begin + bo.bytes) - at_};
  }
  at_ += piece.length;
  return true;
}

}  // namespace sluice
