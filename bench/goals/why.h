// SPDX-License-Identifier: MIT
// Why a goal passes or is short, in sentences built from the figures that were measured beside.
#pragma once

#include <string>
#include <vector>

#include "goals/goals.h"

namespace sluice::bench {

// `result` has everything but its own `why`.
std::vector<std::string> why(const GoalResult& result, std::span<const Report> reports, unsigned cores);

}  // namespace sluice::bench
