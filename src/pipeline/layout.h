// SPDX-License-Identifier: MIT
// The origin of every byte of a pages file. Pure arithmetic, no I/O.
//
//   file = u64 payload length (host byte order), then the contents of the BOs back to back, in the order
//   given
//
// All BOs of a layout lie in one file, or each in its own. No chunk spans two files.
//
// A chunk is a range of the file that starts at a multiple of the chunk size. A piece is the part of a chunk
// that belongs to the header or to one BO. A chunk's buffer starts at the chunk's file offset, so the *file*
// range is aligned for O_DIRECT. The 8-byte header shifts BO against buffer, never buffer against file.
//
// Example (chunk 4 MiB; BOs 12 KiB, 10 MiB, 4 KiB): chunk 0 = header at buffer 0, BO 0 whole at buffer 8, BO
// 1 [0, 4182008) at buffer 12296. Chunk 2 = the end of BO 1, then all of BO 2, 2113544 bytes: 8 mod 4096.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace sluice {

// Bytes before the first BO: the payload length.
inline constexpr std::uint64_t kHeaderBytes = 8;

// The part of the file one slot carries: [file_offset, file_offset + length).
struct Chunk {
  std::uint64_t index = 0;
  std::uint64_t file_offset = 0;
  std::uint64_t length = 0;  // bytes; the last chunk of a file may be shorter than the rest
  std::uint32_t file = 0;
};

// The part of a chunk that belongs to one BO, or to the header.
struct Piece {
  static constexpr std::uint32_t kHeader = UINT32_MAX;

  std::uint32_t bo = kHeader;       // index into the BO list, or kHeader
  std::uint64_t bo_offset = 0;      // first byte within the BO (within the header for kHeader)
  std::uint64_t buffer_offset = 0;  // first byte within the chunk's buffer
  std::uint64_t length = 0;         // bytes, never 0

  bool is_header() const { return bo == kHeader; }
  bool operator==(const Piece&) const = default;
};

// Immutable after construction; may be read from any thread.
class ImageLayout {
 public:
  // `bo_bytes[i]` is the size of BO i; a size of 0 is allowed and yields no piece. `chunk_bytes` is a power
  // of two. Errors: EOVERFLOW if the sizes add up beyond INT64_MAX, EINVAL for a bad chunk size, E2BIG for
  // more than UINT32_MAX - 1 BOs.
  static Result<ImageLayout> make(std::span<const std::uint64_t> bo_bytes, std::uint64_t chunk_bytes);
  // The same with one file per BO: BO i is file i.
  static Result<ImageLayout> make_file_per_bo(std::span<const std::uint64_t> bo_bytes,
                                              std::uint64_t chunk_bytes);

  std::uint32_t file_count() const { return static_cast<std::uint32_t>(files_.size()); }
  std::uint64_t file_bytes(std::uint32_t file = 0) const { return files_[file].bytes; }
  std::uint64_t payload_bytes(std::uint32_t file = 0) const { return files_[file].bytes - kHeaderBytes; }
  std::uint64_t all_file_bytes() const { return all_payload_bytes() + file_count() * kHeaderBytes; }
  std::uint64_t all_payload_bytes() const { return all_payload_bytes_; }

  std::uint64_t chunk_bytes() const { return chunk_bytes_; }
  std::uint64_t chunk_count() const { return chunk_count_; }
  std::uint64_t chunks_of_file(std::uint32_t file) const;
  std::uint32_t bo_count() const { return static_cast<std::uint32_t>(bos_.size()); }

  // BO `bo` is [bo_begin(bo), bo_begin(bo) + bo_bytes(bo)) of its file.
  std::uint64_t bo_begin(std::uint32_t bo) const { return bos_[bo].begin; }
  std::uint64_t bo_bytes(std::uint32_t bo) const { return bos_[bo].bytes; }
  // The BOs of a file are [first_bo(file), end_bo(file)).
  std::uint32_t first_bo(std::uint32_t file) const { return files_[file].first_bo; }
  std::uint32_t end_bo(std::uint32_t file) const {
    return file + 1 < files_.size() ? files_[file + 1].first_bo : bo_count();
  }

  // The file that has BO `bo`.
  std::uint32_t file_of(std::uint32_t bo) const;

  // REQUIRES: index < chunk_count().
  Chunk chunk(std::uint64_t index) const;

  // How many chunks contain a part of BO `bo`. REQUIRES: bo_bytes(bo) > 0.
  std::uint64_t chunks_of_bo(std::uint32_t bo) const {
    return (bo_begin(bo) + bo_bytes(bo) - 1) / chunk_bytes_ - bo_begin(bo) / chunk_bytes_ + 1;
  }

  // Walks the pieces of a chunk in file order without allocating:
  //   for (PieceCursor at = layout.pieces(chunk); at.next(piece);) ...
  class PieceCursor {
   public:
    bool next(Piece& piece);

   private:
    friend class ImageLayout;
    PieceCursor(const ImageLayout& layout, const Chunk& chunk);
    const ImageLayout* layout_;
    std::uint64_t at_;     // next file offset to return
    std::uint64_t end_;    // end of the chunk in the file
    std::uint64_t begin_;  // begin of the chunk in the file
    std::uint32_t bo_;     // BO that contains at_, or the first one after the header
  };
  PieceCursor pieces(const Chunk& chunk) const { return PieceCursor(*this, chunk); }

 private:
  struct Bo {
    std::uint64_t begin = 0;  // in its file
    std::uint64_t bytes = 0;
  };
  struct File {
    std::uint64_t bytes = 0;
    std::uint64_t first_chunk = 0;
    std::uint32_t first_bo = 0;
  };
  ImageLayout() = default;
  static Result<ImageLayout> make(std::span<const std::uint64_t> bo_bytes, std::uint64_t chunk_bytes,
                                  bool file_per_bo);
  void end_file(std::uint32_t first_bo, std::uint64_t bytes);

  std::vector<Bo> bos_;
  std::vector<File> files_;  // in chunk order
  std::uint64_t chunk_bytes_ = 0;
  std::uint64_t chunk_count_ = 0;
  std::uint64_t all_payload_bytes_ = 0;
};

}  // namespace sluice
