// SPDX-License-Identifier: MIT
// A sequence of bytes, and what a compressed one holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"

namespace sluice::cli {

class Input {
 public:
  virtual ~Input() = default;
  // Some of the next bytes, valid until the next call; nothing at the end.
  virtual Result<std::span<const std::byte>> next() = 0;
  // Skips up to that many, where this is cheaper than next(); returns how many.
  virtual std::uint64_t skip(std::uint64_t /*bytes*/) { return 0; }
};

struct Unpacked {
  std::unique_ptr<Input> input;
  bool was_packed = false;
};

// `input` without its compression by gzip or zstd, as gunzip and zstd -d write it; itself if it has none.
// Its end comes only after all checksums were compared: a wrong one, a cut, and garbage after the last member
// are EBADMSG. Members that follow each other are one sequence. Other errors: ENOTSUP with its name for
// another compression or kind of archive; those of reading; ENOMEM.
Result<Unpacked> unpacked(std::unique_ptr<Input> input);

}  // namespace sluice::cli
