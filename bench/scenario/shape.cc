// SPDX-License-Identifier: MIT
#include "scenario/shape.h"

#include <cerrno>
#include <utility>

#include "measure/process.h"

namespace sluice::bench {

Result<Sample> checked_restore(LanePlan plan, std::uint64_t touch_bytes) {
  plan.direction = Direction::Restore;
  SLUICE_TRY(plan.engine->scribble());
  touch_free_memory(touch_bytes);
  SLUICE_TRY_ASSIGN(const RunResult run, run_lanes({&plan, 1}));
  SLUICE_TRY_ASSIGN(const bool intact, plan.engine->intact());
  if (!intact) return make_error(EBADMSG, "the restored contents are not what was dumped");
  return run.sample;
}

void add_case(const BenchOptions& options, Report& report, Case each) {
  options.tell(table_of(Report{report.scenario, "", {each}}));
  report.cases.push_back(std::move(each));
}

}  // namespace sluice::bench
