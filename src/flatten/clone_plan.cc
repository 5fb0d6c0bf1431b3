// SPDX-License-Identifier: MIT
#include "flatten/clone_plan.h"

#include "base/units.h"

namespace sluice {

ClonePlan plan_clones(const ExtentMap& map, std::uint64_t block_bytes, const std::vector<bool>& can_share) {
  const std::uint64_t file_bytes = map.extents.back().end;
  ClonePlan plan{
      {map.files, {}}, std::vector<bool>(static_cast<std::size_t>(div_ceil(file_bytes, kZeroUnitBytes))), 0};
  if (block_bytes == 0 || file_bytes <= kLargestUncloned) return plan;
  for (const Extent& extent : map.extents) {
    // An offset may be smaller in its extent: modulo a power of two the unsigned difference is still right.
    if (extent.is_zeros() || !can_share[extent.file] ||
        !is_aligned(extent.offset - extent.begin, block_bytes))
      continue;
    const std::uint64_t begin = align_up(extent.begin, kZeroUnitBytes);
    for (std::uint64_t at = begin; at + kZeroUnitBytes <= extent.end; at += kZeroUnitBytes) {
      plan.runs.append({at, kZeroUnitBytes, extent.file, extent.offset + (at - extent.begin)});
      plan.parts[static_cast<std::size_t>(at / kZeroUnitBytes)] = true;
      plan.bytes += kZeroUnitBytes;
    }
  }
  return plan;
}

}  // namespace sluice
