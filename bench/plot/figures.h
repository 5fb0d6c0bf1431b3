// SPDX-License-Identifier: MIT
// The figures that are drawn of reports, as scripts for gnuplot that write SVG to stdout. Pure functions: the
// same reports give the same script.
#pragma once

#include <vector>

#include "plot/gnuplot.h"
#include "plot/saved.h"

namespace sluice::bench {

//   throughput  every case that has a ceiling: its rate as a part of it, with both rates in GB/s
//   gain        the same of what was compared with another way: serial, without zeros
//   cpu         CPU time per GB, ours and that of what it was compared with
//   bubble      the grid of stage rates as a heat map
//   pool        rate against the size of the staging memory
// One whose figures are not in the reports is left out.
std::vector<Drawing> drawings(const Saved& saved);

}  // namespace sluice::bench
