// SPDX-License-Identifier: MIT
// What changed between two checkpoints, BO by BO, in blocks: what an incremental dump would have to write.
//
// Two BOs are the same if process, GPU, address and size agree; BOs of render files, if process, device and
// GEM handle agree. If both have sums by units, of one method with one secret (SumMethod), these are compared
// BO by BO and no contents are read. A unit cut elsewhere counts as changed, as in a dump with a parent. Sums
// of older versions have no secret and decide nothing. Otherwise contents are read, first the older
// checkpoint's, then the newer one's, each once and in its source's order; what a parent has, from there.
// They are compared by sums of equal blocks from each BO's begin, with a secret of this comparison: 16 bytes
// of memory per MiB of contents. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/checkpoint.h"
#include "images/files/image_source.h"
#include "images/pages.h"

namespace sluice {

// Bytes; they add up to those of the BOs compared. A block that is zero in the newer checkpoint counts only
// there, changed or not: a dump does not write it.
struct Difference {
  std::uint64_t equal = 0;
  std::uint64_t changed = 0;
  std::uint64_t zero = 0;

  std::uint64_t bytes() const { return equal + changed + zero; }
  Difference& operator+=(const Difference& more);
};

struct BoDifference {
  PagesBo bo;           // in the newer checkpoint
  bool is_new = false;  // not in the older checkpoint: everything in it that is not zero counts as changed
  Difference bytes;
};

struct SetDifference {
  std::uint32_t pid = 0;
  std::string owner;     // "GPU 0x5759" or "renderD128"
  bool by_sums = false;  // no contents were read
  std::vector<BoDifference> bos;
  std::uint64_t gone_bytes = 0;  // of BOs that only the older checkpoint has
  bool sums_differ = false;      // both have sums that cannot be compared

  Difference total() const;
};

struct ImagesAt {
  const ImageSource* source = nullptr;  // borrowed
  const Checkpoint* checkpoint = nullptr;
};

// In the order of the newer checkpoint's images. Errors: those of reading; EBADMSG for pages files of the
// wrong size.
Result<std::vector<SetDifference>> compare(const ImagesAt& older, const ImagesAt& newer);

}  // namespace sluice
