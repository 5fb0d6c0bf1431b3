// SPDX-License-Identifier: MIT
// The goals, and how they are judged: a goal has bars, each on one figure of one scenario's report, and
// passes when every bar is cleared by the whole 95 % interval: its lower end where more is better, its upper
// end where less is. Pure functions over reports; nothing is measured here.
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
  const char* unit;  // the figure's: one with another unit is not the one that is meant
};

struct Goal {
  unsigned id;
  const char* name;
  std::vector<Bar> bars;
};

const std::vector<Goal>& goals();

enum class Verdict : std::uint8_t { Pass, Short, NotMeasured };
const char* name_of(Verdict verdict);

struct BarResult {
  Bar bar;
  std::optional<Interval> measured;
  Verdict verdict = Verdict::NotMeasured;
  double margin = 0;  // how far the interval's worse end is on the good side, in parts of the bar
};

struct GoalResult {
  unsigned id = 0;
  std::string name;
  std::vector<BarResult> bars;
  BarResult tightest;  // the measured bar of the least margin; the first bar where none was measured
  Verdict verdict = Verdict::NotMeasured;  // Short when any bar is, else NotMeasured when any bar is
  std::vector<std::string> why;            // sentences built from what was measured
};

// `cores`: of the machine, for what CPU figures mean.
GoalResult judge(const Goal& goal, std::span<const Report> reports, unsigned cores);

std::string table_of(std::span<const GoalResult> results);
nlohmann::ordered_json json_of(std::span<const GoalResult> results);

}  // namespace sluice::bench
