// SPDX-License-Identifier: MIT
// What scenarios run with where it is not what they vary. Sizes in bytes.
#pragma once

#include <cstdint>

#include "base/units.h"
#include "lane/lane_run.h"
#include "scenario/place.h"

namespace sluice::bench {

inline constexpr const char* kPagesName = "amdgpu-pages-1-0001.img";
// A lane between the engine's BOs and that file. Both are borrowed; `sums`: made on dump, compared on
// restore; null: made and forgotten.
inline LanePlan pages_plan(CopyEngine& engine, const Place& place, SumTable* sums = nullptr) {
  LanePlan plan;
  plan.engine = &engine;
  plan.directory = place.fd();
  plan.name = kPagesName;
  plan.sums = sums;
  return plan;
}

// Restores what `plan` has dumped, into BOs that hold something else by then, and compares them with what
// they held. Only the restore is timed; `touch_bytes` of free memory are touched right before it. Errors:
// EBADMSG (something else has come back).
Result<Sample> checked_restore(LanePlan plan, std::uint64_t touch_bytes);

inline constexpr std::uint64_t kTouchBytes = 256 * kMiB;  // of free memory, before a timed run

}  // namespace sluice::bench
