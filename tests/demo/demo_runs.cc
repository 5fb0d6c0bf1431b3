// SPDX-License-Identifier: MIT
#include "demo_runs.h"

#include <string>
#include <utility>
#include <vector>

#include "goals/goals.h"

namespace sluice::demo {
namespace {

constexpr double kDemoRatio = 0.95;
constexpr double kTreeTimes = 1.1;

// The rate of two transfers of as many bytes, one after the other.
double rate_of_both(double first, double second) {
  return 2 / (1 / first + 1 / second);
}

bench::Case case_of(const char* name, const std::vector<double>& ours, const std::vector<double>& raw) {
  return {name,
          "",
          {bench::ratio("ratio", ours, raw), bench::ratio("time / raw time", raw, ours),
           bench::figure("ours", "GB/s", ours), bench::figure("raw", "GB/s", raw)}};
}

std::string verdict_of(const bench::Bar& bar, const bench::Report& report) {
  const bench::GoalResult judged = bench::judge({0, "", {bar}}, {&report, 1}, 0);
  return std::string(bar.figure) + (bar.side == bench::Side::AtLeast ? " at least " : " at most ") +
         bench::number(bar.limit) + ": " + bench::name_of(judged.verdict);
}

}  // namespace

bench::Report report_of(unsigned processes, unsigned gpus, std::span<const RunRates> runs) {
  std::vector<double> dumps, raw_writes, restores, raw_reads;
  for (const RunRates& run : runs) {
    dumps.push_back(run.dump);
    raw_writes.push_back(rate_of_both(run.raw_write_before, run.raw_write_after));
    restores.push_back(run.restore);
    raw_reads.push_back(rate_of_both(run.raw_read_before, run.raw_read_after));
  }
  const bool tree = processes > 1;
  bench::Report report{tree ? "tree" : "demo",
                       std::to_string(processes) + (tree ? " processes, " : " process, ") +
                           std::to_string(gpus) + (gpus > 1 ? " GPUs" : " GPU") +
                           ", through the whole plugin; raw: before and after each dump and restore",
                       {case_of("dump", dumps, raw_writes), case_of("restore", restores, raw_reads)}};
  const char* const scenario = report.scenario.c_str();
  if (tree) {
    report.cases[0].note =
        verdict_of({scenario, "dump", "time / raw time", bench::Side::AtMost, kTreeTimes, "ratio"}, report);
  } else {
    for (bench::Case& each : report.cases) {
      each.note = verdict_of(
          {scenario, each.name.c_str(), "ratio", bench::Side::AtLeast, kDemoRatio, "ratio"}, report);
    }
  }
  return report;
}

}  // namespace sluice::demo
