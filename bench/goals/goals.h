// SPDX-License-Identifier: MIT
// The goals, and how they are judged. A goal has bars, each on one figure of one scenario's report. It passes
// if the whole 95 % interval clears every bar: the lower end where more is better, the upper end where less
// is. It is short if a whole interval does not. Where a bar is inside its interval, this run cannot tell.
// Pure functions over reports; nothing is measured here.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "report/report.h"

namespace sluice::bench {

enum class Side : std::uint8_t { AtLeast, AtMost };

struct Bar {
  const char* scenario;
  const char* case_name;
  const char* figure;
  Side side;
  double limit;
  const char* unit;  // the figure's: a figure with another unit is not meant
};

struct Goal {
  unsigned id;
  const char* name;
  std::vector<Bar> bars;
};

const std::vector<Goal>& goals();

enum class Verdict : std::uint8_t { Pass, WithinNoise, Short, NotMeasured };
const char* name_of(Verdict verdict);

struct BarResult {
  Bar bar;
  std::optional<Interval> measured;
  Verdict verdict = Verdict::NotMeasured;
  double margin = 0;  // how far the interval's worse end is on the good side, relative to the bar
};

struct GoalResult {
  unsigned id = 0;
  std::string name;
  std::vector<BarResult> bars;
  BarResult tightest;  // the measured bar with the smallest margin; the first bar if none was measured
  Verdict verdict = Verdict::NotMeasured;  // the worst of its bars: Short, NotMeasured, WithinNoise, Pass
  std::vector<std::string> why;            // sentences made from the measurements
};

// `cores`: the machine's, to interpret CPU figures.
GoalResult judge(const Goal& goal, std::span<const Report> reports, unsigned cores);

std::string table_of(std::span<const GoalResult> results);
// What dumps and restores on this disk came to, in one line; empty if neither was measured.
std::string headline_of(std::span<const Report> reports);
nlohmann::ordered_json json_of(std::span<const GoalResult> results);

}  // namespace sluice::bench
