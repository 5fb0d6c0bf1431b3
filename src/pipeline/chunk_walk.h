// SPDX-License-Identifier: MIT
// The order in which a lane takes the chunks of a layout: by index, or with several cursors, each in its own
// part of the file.
//
// A dump with a parent writes only what has changed. By index, a run of changed chunks fills all slots, and
// the GPU's link stands still until the disk has written them; then the disk has nothing to do until the next
// run. With many cursors the chunks of a run come one by one, with unchanged ones between them: the link and
// the disk work at the same time.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>

#include "base/units.h"

namespace sluice {

// BOs that each cursor keeps half done at most: the one it began in, the current one, and the one that
// continues in the next part.
inline constexpr std::uint64_t kBosOfCursor = 3;
inline constexpr std::uint32_t kMostCursors = 256;

// For a file that is written in part. A cursor has at least 16 chunks, so that neighbouring cursors are
// seldom in the same run.
constexpr std::uint32_t cursors_for_changes(std::uint64_t chunks) {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(chunks / 16, 1, kMostCursors));
}

// Gives each index below `chunks` once. Each cursor begins at another place of its part and wraps round.
// Equal layers often change in the same place, and those changes must not reach all cursors at once. Value
// type.
class ChunkWalk {
 public:
  // REQUIRES: cursors > 0.
  ChunkWalk(std::uint64_t chunks, std::uint32_t cursors)
      : chunks_(chunks),
        part_(std::max<std::uint64_t>(div_ceil(chunks, cursors), 1)),
        cursors_(div_ceil(chunks, part_)),
        left_(chunks) {}

  bool ended() const { return left_ == 0; }
  // REQUIRES: it has not ended.
  std::uint64_t next() {
    assert(left_ > 0);
    std::uint64_t index = 0;
    do {  // the last part may be shorter
      index = cursor_ * part_ + (step_ + begin_in_part()) % part_;
      if (++cursor_ == cursors_) {
        cursor_ = 0;
        ++step_;
      }
    } while (index >= chunks_);
    --left_;
    return index;
  }

 private:
  // Of the cursor whose turn it is: its square times the golden ratio's fraction, so that neither neighbours
  // nor those at any distance from each other begin alike.
  std::uint64_t begin_in_part() const {
    constexpr std::uint64_t kGolden = 40503;  // of 2^16
    return (cursor_ * cursor_ * kGolden % (1 << 16)) * part_ >> 16;
  }

  std::uint64_t chunks_;
  std::uint64_t part_;     // chunks that a cursor has
  std::uint64_t cursors_;  // that have any
  std::uint64_t left_;
  std::uint64_t cursor_ = 0;  // whose turn it is
  std::uint64_t step_ = 0;    // how far each has come
};

}  // namespace sluice
