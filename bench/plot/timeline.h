// SPDX-License-Identifier: MIT
// A trace as a figure: a row for each slot, lanes below each other, time from left to right, a bar in the
// colour of the stage for as long as a chunk was there. Pure function.
#pragma once

#include <string>

#include "plot/gnuplot.h"
#include "plot/saved_trace.h"

namespace sluice::bench {

// Of a long trace the beginning, as much as has some thousand bars; the title says so. `name` is the
// drawing's. Errors: EINVAL (no chunk in it), EFBIG (more slots than a figure has rows).
Result<Drawing> timeline(const SavedTrace& trace, std::string name);

}  // namespace sluice::bench
