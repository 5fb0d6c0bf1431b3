// SPDX-License-Identifier: MIT
// What changed between two checkpoints, BO by BO, in blocks: what an incremental dump would have to write.
//
// A BO of one is the BO of the other where it is of the same process, on the same GPU, at the same address
// and of the same size; one of a render file where process, device and GEM handle agree. Where all BOs of a
// pages file are in both, in the same order and with sums of the same block size, sums are compared and no
// contents are read: then a block that is partly one BO's and partly the next one's counts as changed for
// both. Else contents are read, those of the older one and then those of the newer one, each once and in the
// order that its source has, and compared by sums of blocks of the same size from each BO's begin. 16 bytes
// of memory for each MiB of contents. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/checkpoint.h"
#include "images/image_source.h"
#include "images/pages.h"

namespace sluice {

// Bytes; they add up to those of the BOs compared. A block that is zero in the newer one counts there alone,
// changed or not: a dump does not write it.
struct Difference {
  std::uint64_t equal = 0;
  std::uint64_t changed = 0;
  std::uint64_t zero = 0;

  std::uint64_t bytes() const { return equal + changed + zero; }
  Difference& operator+=(const Difference& more);
};

struct BoDifference {
  PagesBo bo;           // in the newer one
  bool is_new = false;  // the older one lacks it: all that is not zero in it has changed
  Difference bytes;
};

struct SetDifference {
  std::uint32_t pid = 0;
  std::string owner;     // "GPU 0x5759" or "renderD128"
  bool by_sums = false;  // no contents were read
  std::vector<BoDifference> bos;
  std::uint64_t gone_bytes = 0;  // of BOs that only the older one has

  Difference total() const;
};

struct ImagesAt {
  const ImageSource* source = nullptr;  // borrowed
  const Checkpoint* checkpoint = nullptr;
};

// In the order of the newer one's images. Errors: those of reading; EBADMSG for pages files that have not the
// size they must have.
Result<std::vector<SetDifference>> compare(const ImagesAt& older, const ImagesAt& newer);

}  // namespace sluice
