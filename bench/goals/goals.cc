// SPDX-License-Identifier: MIT
#include "goals/goals.h"

#include <algorithm>

#include "goals/why.h"

namespace sluice::bench {
namespace {

const Figure* find(const Bar& bar, std::span<const Report> reports) {
  for (const Report& report : reports) {
    if (report.scenario != bar.scenario) continue;
    const Case* in = report.find(bar.case_name);
    const Figure* figure = in == nullptr ? nullptr : in->find(bar.figure);
    if (figure != nullptr && figure->unit == bar.unit) return figure;
  }
  return nullptr;
}

BarResult judge(const Bar& bar, std::span<const Report> reports) {
  BarResult result{bar, {}, Verdict::NotMeasured, 0};
  const Figure* figure = find(bar, reports);
  if (figure == nullptr) return result;
  result.measured = figure->value;
  const double worse_end = bar.side == Side::AtLeast ? figure->value.low : figure->value.high;
  const double of = bar.limit != 0 ? bar.limit : 1;  // a bar of zero: absolute
  result.margin = (worse_end - bar.limit) / of * (bar.side == Side::AtLeast ? 1 : -1);
  const double better_end = bar.side == Side::AtLeast ? figure->value.high : figure->value.low;
  const bool may_clear = bar.side == Side::AtLeast ? better_end >= bar.limit : better_end <= bar.limit;
  result.verdict = result.margin >= 0 ? Verdict::Pass : may_clear ? Verdict::WithinNoise : Verdict::Short;
  return result;
}

bool tighter(const BarResult& left, const BarResult& right) {
  if (left.measured.has_value() != right.measured.has_value()) return left.measured.has_value();
  return left.margin < right.margin;
}

bool any(const std::vector<BarResult>& bars, Verdict verdict) {
  return std::any_of(bars.begin(), bars.end(), [&](const BarResult& bar) { return bar.verdict == verdict; });
}

}  // namespace

const std::vector<Goal>& goals() {
  static const std::vector<Goal> kGoals = {
      {1,
       "dump at the speed of raw durable writes",
       {{"dump", "memcpy, new file, checksum", "ratio", Side::AtLeast, 0.95, "ratio"},
        {"dump", "memcpy, allocated file, checksum", "ratio", Side::AtLeast, 0.95, "ratio"},
        {"dump", "memcpy, rewritten file, checksum", "ratio", Side::AtLeast, 0.95, "ratio"}}},
      {2,
       "verified restore at the speed of raw reads",
       {{"restore", "memcpy, every block verified", "ratio", Side::AtLeast, 0.95, "ratio"},
        {"cached", "all warm", "ratio", Side::AtLeast, 1.0, "ratio"}}},
      {3,
       "no bubble: the slowest stage alone sets the pace",
       {{"bubble", "10/10/10", "overhead", Side::AtMost, 1.03, "ratio"}}},
      {4,
       "engine cost per chunk of 4 MiB",
       {{"engine", "no checksum", "per chunk", Side::AtMost, 10, "us"},
        {"engine", "checksum", "ratio", Side::AtLeast, 0.95, "ratio"}}},
      {5,
       "CPU with the checksum on",
       {{"dump", "memcpy, new file, checksum", "cpu", Side::AtMost, 0.10, "s/GB"},
        {"restore", "memcpy, every block verified", "cpu", Side::AtMost, 0.06, "s/GB"}}},
      {6,
       "memory bounded at full rate",
       {{"memory", "1 TiB BO", "peak", Side::AtMost, 128, "MiB"},
        {"memory", "pool 64 MiB", "ratio", Side::AtLeast, 0.99, "ratio"},
        {"memory", "pool 64 MiB, restore", "ratio", Side::AtLeast, 0.99, "ratio"}}},
      {7,
       "faster than the serial way",
       {{"serial", "dump, to durable", "ratio", Side::AtLeast, 2, "ratio"},
        {"serial", "restore, cold cache", "ratio", Side::AtLeast, 1.5, "ratio"}}},
      {8,
       "corruption is found at the same speed",
       {{"dump", "memcpy, new file, checksum on / off", "ratio", Side::AtLeast, 0.98, "ratio"},
        {"restore", "memcpy, verifying on / off", "ratio", Side::AtLeast, 0.98, "ratio"}}},
      {10,
       "zero memory is not written",
       {{"zero", "75 % zero, runs of 1 MiB", "ratio", Side::AtLeast, 3, "ratio"},
        {"zero", "75 % zero, runs of 1 MiB", "disk", Side::AtMost, 27, "%"},
        {"zero", "dense data, zero search on / off", "ratio", Side::AtLeast, 0.99, "ratio"}}},
      {11,
       "eight GPUs, eight processes",
       {{"scale", "one disk", "ratio", Side::AtLeast, 0.97, "ratio"},
        {"scale", "one disk", "unfairness", Side::AtMost, 5, "%"},
        {"scale", "independent sinks", "ratio", Side::AtLeast, 0.95, "ratio"}}},
      {12,
       "streams at the speed of a plain loop",
       {{"stream", "dump, to the disk", "ratio", Side::AtLeast, 0.90, "ratio"},
        {"stream", "dump, to a program", "ratio", Side::AtLeast, 0.90, "ratio"},
        {"stream", "restore, from the disk", "ratio", Side::AtLeast, 0.90, "ratio"},
        {"stream", "restore, from a program", "ratio", Side::AtLeast, 0.90, "ratio"},
        {"stream", "dump, to the disk", "beyond the pools", Side::AtMost, 64, "MiB"},
        {"stream", "restore, from the disk", "beyond the pools", Side::AtMost, 64, "MiB"}}},
      {14,
       "a job stands still for what has changed",
       {{"frozen", "memcpy, 5 % changed in runs of 1 MiB", "of the larger", Side::AtMost, 1.15, "ratio"},
        {"frozen", "memcpy, 5 % changed in runs of 64 MiB", "of the larger", Side::AtMost, 1.15, "ratio"},
        {"frozen", "memcpy, 5 % changed in one run", "of the sum", Side::AtMost, 1.15, "ratio"}}},
      {15,
       "a parent that never matches costs nothing",
       {{"frozen", "memcpy, a parent that never matches, null sink", "cpu ratio", Side::AtMost, 1.02,
         "ratio"},
        {"frozen", "memcpy, a parent that never matches, null sink", "bytes more", Side::AtMost, 0, "MiB"}}},
      {16,
       "cold restore from a chain of three",
       {{"frozen", "memcpy, restore from a chain of three, runs of 64 MiB", "ratio", Side::AtLeast, 0.90,
         "ratio"},
        {"frozen", "memcpy, restore from a chain of three, runs of 1 MiB", "ratio", Side::AtLeast, 0.70,
         "ratio"}}},
      {17,
       "ten dumps take the space of one and a half",
       {{"frozen", "memcpy, ten dumps, 5 % changed in each, runs of 1 MiB", "space", Side::AtMost, 1.55,
         "ratio"}}},
      {18,
       "a pre-dump slows a job little",
       {{"frozen", "memcpy, a job beside a pre-dump, default rate", "slower", Side::AtMost, 1.20, "ratio"}}},
      {19,
       "what eight GPUs share is written once and read once",
       {{"replicas", "eight equal lanes", "of the larger", Side::AtMost, 1.25, "ratio"},
        {"replicas", "eight equal lanes", "space", Side::AtMost, 1.02, "ratio"},
        {"replicas", "eight equal lanes, restored cold", "of the larger", Side::AtMost, 1.25, "ratio"},
        {"replicas", "eight different lanes, null sink, on / off", "cpu ratio", Side::AtMost, 1.02, "ratio"},
        {"replicas", "eight different lanes, null sink, on / off", "bytes more", Side::AtMost, 0, "MiB"}}},
  };
  return kGoals;
}

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::Pass:
      return "pass";
    case Verdict::WithinNoise:
      return "within noise";
    case Verdict::Short:
      return "short";
    case Verdict::NotMeasured:
      return "not measured";
  }
  return "";
}

GoalResult judge(const Goal& goal, std::span<const Report> reports, unsigned cores) {
  GoalResult result{goal.id, goal.name, {}, {}, Verdict::Pass, {}};
  for (const Bar& bar : goal.bars) result.bars.push_back(judge(bar, reports));
  result.tightest = *std::min_element(result.bars.begin(), result.bars.end(), tighter);
  for (const Verdict worse : {Verdict::WithinNoise, Verdict::NotMeasured, Verdict::Short}) {
    if (any(result.bars, worse)) result.verdict = worse;
  }
  result.why = why(result, reports, cores);
  return result;
}

}  // namespace sluice::bench
