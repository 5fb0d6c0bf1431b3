// SPDX-License-Identifier: MIT
// Defaults of scenarios for everything that they do not vary. Sizes in bytes.
#pragma once

#include <cstdint>

#include "base/units.h"
#include "lane/lane_run.h"
#include "scenario/place.h"
#include "scenario/scenario.h"

namespace sluice::bench {

inline constexpr const char* kPagesName = "amdgpu-pages-1-0001.img";
// A lane between the engine's BOs and that file. Both are borrowed; `sums`: made on dump, compared on
// restore; null: made and discarded.
inline LanePlan pages_plan(CopyEngine& engine, const Place& place, SumTable* sums = nullptr) {
  LanePlan plan;
  plan.engine = &engine;
  plan.directory = place.fd();
  plan.name = kPagesName;
  plan.sums = sums;
  return plan;
}

// Restores the dump of `plan` into BOs that have other contents by then, and compares the result. Only the
// restore is timed; `touch_bytes` of free memory are touched right before it. Errors: EBADMSG (wrong
// contents).
Result<Sample> checked_restore(LanePlan plan, std::uint64_t touch_bytes);

inline constexpr std::uint64_t kTouchBytes = 256 * kMiB;  // of free memory, before a timed run

// Adds a case and prints it, so that the results of a long run are kept if it is stopped.
void add_case(const BenchOptions& options, Report& report, Case each);

}  // namespace sluice::bench
