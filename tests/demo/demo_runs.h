// SPDX-License-Identifier: MIT
// What several runs of the demo say together: medians of pair ratios, by the bench's statistics, beside the
// bars. Plain values, pure functions.
#pragma once

#include <span>

#include "report/report.h"

namespace sluice::demo {

// One run. Rates in 10^9 bytes/s; the raw ones are what the disk did right before and right after.
struct RunRates {
  double dump = 0;
  double raw_write_before = 0, raw_write_after = 0;
  double restore = 0;
  double raw_read_before = 0, raw_read_after = 0;
};

// Cases "dump" and "restore" of a scenario "demo" (one process; the bar: 95 % of the raw rate) or "tree" (the
// bar: its dump in 1.1 times the raw time). A bar is cleared by the whole interval; the case's note says
// whether it is. REQUIRES: runs is not empty.
bench::Report report_of(unsigned processes, unsigned gpus, std::span<const RunRates> runs);

}  // namespace sluice::demo
