// SPDX-License-Identifier: MIT
// Runs the scenarios that goals need, each once, and judges. A run of all goals, unless quick, also measures
// the raw ceilings and small BOs: no goal needs these, but readers do. One thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "goals/goals.h"
#include "scenario/scenario.h"

namespace sluice::bench {

struct GoalsRun {
  std::string text;             // the machine and the table, for people
  nlohmann::ordered_json json;  // goals, seconds, machine, reports with their samples, scenarios that failed
  bool complete = true;         // every scenario completed
};

// `only`: ids of the wanted goals; empty: all.
GoalsRun run_goals(const BenchOptions& options, const std::vector<unsigned>& only);

}  // namespace sluice::bench
