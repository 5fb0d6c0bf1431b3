// SPDX-License-Identifier: MIT
// Which ranges of a new file other files have, in whole parts of kZeroUnitBytes.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/extents/extent_reader.h"

namespace sluice {

// [begin, begin + bytes) of the new file are [offset, offset + bytes) of another one. Bytes.
struct CloneRun {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  std::uint32_t file = 0;  // of CloneRuns::files
  std::uint64_t offset = 0;

  bool operator==(const CloneRun&) const = default;
};

// All clones of a file, ascending.
struct CloneRuns {
  std::vector<ExtentFile> files;
  std::vector<CloneRun> runs;

  // Extends the last run if `next` continues it in both files.
  void append(const CloneRun& next);
};

}  // namespace sluice
