// SPDX-License-Identifier: MIT
// Why a goal passes or is short, in sentences made from the other measured figures.
#pragma once

#include <string>
#include <vector>

#include "goals/goals.h"

namespace sluice::bench {

// `result` is complete except for its own `why`.
std::vector<std::string> why(const GoalResult& result, std::span<const Report> reports, unsigned cores);

}  // namespace sluice::bench
