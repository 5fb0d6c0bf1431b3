// SPDX-License-Identifier: MIT
// Which parts of a file can be cloned from the files that hold its bytes. Pure arithmetic.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline/extents/extent_cloner.h"
#include "pipeline/extents/extent_reader.h"
#include "pipeline/slot.h"

namespace sluice {

struct ClonePlan {
  CloneRuns runs;
  std::vector<bool> parts;  // one per kZeroUnitBytes of the file: cloned or not
  std::uint64_t bytes = 0;
};

// Whole parts that lie in one extent, at the same place within a block of `block_bytes` (a power of two; 0:
// nothing is cloned). `can_share`: by file of the map.
ClonePlan plan_clones(const ExtentMap& map, std::uint64_t block_bytes, const std::vector<bool>& can_share);

}  // namespace sluice
