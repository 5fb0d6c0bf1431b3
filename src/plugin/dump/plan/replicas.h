// SPDX-License-Identifier: MIT
// Which lanes of a dump may hold the same contents. Data-parallel jobs make the same BOs on each GPU in the
// same order, whatever their addresses. So the nth BO of its size on one GPU corresponds to the nth of that
// size on another. That is only a hint; sums of 64 KiB decide (ContentMatch).
#pragma once

#include <cstdint>
#include <vector>

#include "images/pages.h"
#include "plugin/contents/contents_job.h"

namespace sluice::plugin {

// For each BO of `follower`, the one of `leader` that corresponds to it, or Leader::kNoBo. Both are walked in
// their order, and BOs that would lead back are left out: a lane that follows another never waits for what
// that one has long passed, or writes last.
std::vector<std::uint32_t> corresponding_bos(const PagesSet& follower, const PagesSet& leader);

// Numbers the lanes, in the order of the plan, and gives each the lanes before it that it may follow: up to
// kMostLeaders, the nearest ones, where at least kLeastReplicaBytes correspond. Files of render nodes have no
// part in it, because each of their BOs is a file.
inline constexpr std::uint64_t kLeastReplicaBytes = kMiB;
void plan_replicas(std::vector<std::vector<LaneContents>>& lanes);

}  // namespace sluice::plugin
