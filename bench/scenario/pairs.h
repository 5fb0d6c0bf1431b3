// SPDX-License-Identifier: MIT
// Two ways of doing the same, run in turn: A-B-B-A-A-B ..., so that neither always comes first, with the cost
// of both. Pairs are compared.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "measure/sample.h"
#include "report/report.h"
#include "scenario/scenario.h"

namespace sluice::bench {

using Run = std::function<Result<Sample>()>;

struct Pairs {
  std::vector<Sample> ours, raw;

  std::vector<double> our_gbps() const;
  std::vector<double> raw_gbps() const;
  // "ratio", "ours", "raw" (GB/s), "cpu", "raw cpu" (s/GB), and "dma cpu" if there is some.
  std::vector<Figure> figures() const;
};

// Runs both `count` times. `prepare` comes before each run, outside its time.
Result<Pairs> run_pairs(unsigned count, const std::function<void()>& prepare, const Run& ours,
                        const Run& raw);

// What a feature costs at a sink that takes no time: "cpu ratio", "time ratio", "bytes more" that reached the
// sink, "cpu" and "cpu without". `pairs.ours` are with the feature.
std::vector<Figure> cost_figures(const Pairs& pairs, std::uint64_t bytes_with, std::uint64_t bytes_without);

// The cost of a feature: `run(true)` compared with `run(false)`, which runs without it; "ratio", "on" and
// "off" (GB/s). The difference is a percent or two, so there are more pairs than elsewhere.
Result<Case> on_off_case(const BenchOptions& options, const std::string& name, const std::string& note,
                         const std::function<Result<Sample>(bool on)>& run);

}  // namespace sluice::bench
