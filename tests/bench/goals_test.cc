// SPDX-License-Identifier: MIT
// How goals are judged, from reports made up for it.
#include "goals/goals.h"

#include <gtest/gtest.h>

#include <set>

#include "goals/measured_machine.h"

namespace sluice::bench {
namespace {

constexpr unsigned kCores = 2;
const Bar kRatio{"dump", "new file", "ratio", Side::AtLeast, 0.95, "ratio"};
const Bar kCpu{"dump", "new file", "cpu", Side::AtMost, 0.10, "s/GB"};
const Bar kRestore{"restore", "verified", "ratio", Side::AtLeast, 0.95, "ratio"};

Figure measured(const char* name, const char* unit, Interval interval) {
  return {name, unit, interval, {interval.low, interval.value, interval.high}};
}

std::vector<Report> dump_report(std::vector<Figure> figures, std::string note = "") {
  return {{"dump", "", {{"new file", std::move(note), std::move(figures)}}}};
}

std::string all(const std::vector<std::string>& sentences) {
  std::string text;
  for (const std::string& sentence : sentences) text += sentence + "\n";
  return text;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Goal, PassesWhenTheWholeIntervalClearsItsBar) {
  const auto reports = dump_report({measured("ratio", "ratio", {0.97, 0.95, 0.99})});
  const GoalResult result = judge({1, "dump", {kRatio}}, reports, kCores);
  EXPECT_EQ(result.verdict, Verdict::Pass);
  EXPECT_EQ(result.tightest.measured->value, 0.97);
}

TEST(Goal, IsWithinNoiseWhenItsBarIsInsideTheInterval) {
  for (const double median : {0.97, 0.949}) {
    const auto reports = dump_report({measured("ratio", "ratio", {median, 0.90, 0.99})});
    EXPECT_EQ(judge({1, "dump", {kRatio}}, reports, kCores).verdict, Verdict::WithinNoise) << median;
  }
  const auto reports = dump_report({measured("ratio", "ratio", {0.97, 0.949, 0.99})});
  const GoalResult result = judge({1, "dump", {kRatio}}, reports, kCores);
  EXPECT_TRUE(has(all(result.why), "the median of ratio clears the bar, its interval (0.949) does not"))
      << all(result.why);
}

TEST(Goal, ThatIsAtMostLooksAtTheUpperEnd) {
  const Goal goal{5, "cpu", {kCpu}};
  EXPECT_EQ(judge(goal, dump_report({measured("cpu", "s/GB", {0.08, 0.01, 0.10})}), kCores).verdict,
            Verdict::Pass);
  EXPECT_EQ(judge(goal, dump_report({measured("cpu", "s/GB", {0.08, 0.01, 0.101})}), kCores).verdict,
            Verdict::WithinNoise);
  EXPECT_EQ(judge(goal, dump_report({measured("cpu", "s/GB", {0.12, 0.101, 0.13})}), kCores).verdict,
            Verdict::Short);
  const GoalResult above = judge(goal, dump_report({measured("cpu", "s/GB", {0.2, 0.1, 0.3})}), kCores);
  EXPECT_TRUE(has(all(above.why), "cpu 0.200 s/GB is above 0.100 s/GB")) << all(above.why);
}

TEST(Goal, WhoseBarIsNothingPassesWithNothing) {
  const Bar none{"dump", "new file", "bytes more", Side::AtMost, 0, "MiB"};
  EXPECT_EQ(
      judge({15, "none", {none}}, dump_report({measured("bytes more", "MiB", {0, 0, 0})}), kCores).verdict,
      Verdict::Pass);
  EXPECT_EQ(
      judge({15, "none", {none}}, dump_report({measured("bytes more", "MiB", {1, 1, 1})}), kCores).verdict,
      Verdict::Short);
}

TEST(Goal, WithSeveralBarsShowsTheTightest) {
  const auto reports = dump_report(
      {measured("ratio", "ratio", {1.2, 1.1, 1.3}), measured("cpu", "s/GB", {0.09, 0.08, 0.095})});
  const GoalResult result = judge({1, "both", {kRatio, kCpu}}, reports, kCores);
  EXPECT_EQ(result.verdict, Verdict::Pass);
  EXPECT_STREQ(result.tightest.bar.figure, "cpu");
  EXPECT_EQ(result.bars.size(), 2U);
}

TEST(Goal, IsShortWhenOneOfItsBarsIs) {
  const auto reports =
      dump_report({measured("ratio", "ratio", {0.5, 0.4, 0.6}), measured("cpu", "s/GB", {0.05, 0.05, 0.05})});
  const GoalResult result = judge({1, "both", {kCpu, kRatio}}, reports, kCores);
  EXPECT_EQ(result.verdict, Verdict::Short);
  EXPECT_STREQ(result.tightest.bar.figure, "ratio");
  ASSERT_EQ(result.why.size(), 1U);
  EXPECT_TRUE(has(result.why[0], "dump, new file: ratio 0.500 is below 0.950; cpu 0.0500 s/GB"))
      << result.why[0];
}

TEST(Goal, WithoutItsCaseIsNotMeasured) {
  const auto reports = dump_report({measured("ratio", "ratio", {0.97, 0.96, 0.99})});
  const GoalResult result = judge({1, "both", {kRatio, kRestore}}, reports, kCores);
  EXPECT_EQ(result.verdict, Verdict::NotMeasured);
  EXPECT_STREQ(result.tightest.bar.scenario, "dump");
  EXPECT_TRUE(has(all(result.why), "restore, verified: ratio was not measured")) << all(result.why);
}

TEST(Goal, WithoutAnyReportIsNotMeasured) {
  const GoalResult result = judge({1, "both", {kRatio, kRestore}}, {}, kCores);
  EXPECT_EQ(result.verdict, Verdict::NotMeasured);
  EXPECT_FALSE(result.tightest.measured);
}

TEST(Goal, IsShortEvenWhenAnotherBarIsNotMeasured) {
  const auto reports = dump_report({measured("ratio", "ratio", {0.5, 0.4, 0.6})});
  EXPECT_EQ(judge({1, "both", {kRestore, kRatio}}, reports, kCores).verdict, Verdict::Short);
}

TEST(Goal, WithinNoiseIsBetterThanNotMeasured) {
  const auto reports = dump_report({measured("ratio", "ratio", {0.97, 0.9, 0.99})});
  EXPECT_EQ(judge({1, "both", {kRestore, kRatio}}, reports, kCores).verdict, Verdict::NotMeasured);
}

TEST(Headline, SaysWhatDumpsAndRestoresCameTo) {
  EXPECT_EQ(headline_of({}), "");
  const auto rates = [](const char* scenario, const char* name) {
    return Report{
        scenario,
        "",
        {{name, "", {measured("ours", "GB/s", {2, 1.9, 2.1}), measured("raw", "GB/s", {2.5, 2.4, 2.6})}}}};
  };
  const std::vector<Report> reports = {rates("dump", "memcpy, new file, checksum"),
                                       rates("restore", "memcpy, every block verified")};
  EXPECT_EQ(headline_of(reports),
            "This disk: a durable dump runs at 2.000 GB/s (bare writes: 2.500), a verified restore at "
            "2.000 GB/s (bare reads: 2.500)\n");
}

TEST(Goal, TakesNoFigureInAnotherUnit) {
  const auto reports = dump_report({measured("ratio", "%", {97, 96, 98})});
  EXPECT_EQ(judge({1, "dump", {kRatio}}, reports, kCores).verdict, Verdict::NotMeasured);
}

TEST(Why, SaysWhetherTheProcessorsSetThePace) {
  const auto with_cpu = [](double cpu) {
    return dump_report({measured("ratio", "ratio", {0.5, 0.4, 0.6}), measured("ours", "GB/s", {4, 4, 4}),
                        measured("cpu", "s/GB", {cpu, cpu, cpu}),
                        measured("dma cpu", "s/GB", {0.1, 0.1, 0.1})});
  };
  const Goal goal{1, "dump", {kRatio}};
  const std::string busy = all(judge(goal, with_cpu(0.4), kCores).why);
  EXPECT_TRUE(has(busy, "2.000 of 2 cores were busy, 0.400 of it in the place of a GPU: the processors"))
      << busy;
  const std::string idle = all(judge(goal, with_cpu(0.05), kCores).why);
  EXPECT_TRUE(has(idle, "0.600 of 2 cores were busy")) << idle;
  EXPECT_TRUE(has(idle, "most of the time was waiting")) << idle;
}

TEST(Why, TellsTheCasesNote) {
  const auto reports = dump_report({measured("ratio", "ratio", {0.97, 0.96, 0.99})}, "without a limit");
  EXPECT_TRUE(has(all(judge({1, "dump", {kRatio}}, reports, kCores).why), "without a limit"));
}

TEST(Why, TellsTheNoteOfAClearedBarOnceWhereAnotherIsShort) {
  std::vector<Report> reports = dump_report(
      {measured("ratio", "ratio", {0.97, 0.96, 0.99}), measured("cpu", "s/GB", {0.05, 0.05, 0.05})},
      "under a limit");
  reports.push_back({"restore", "", {{"verified", "", {measured("ratio", "ratio", {0.5, 0.4, 0.6})}}}});
  const GoalResult result = judge({1, "both", {kRatio, kCpu, kRestore}}, reports, kCores);
  EXPECT_EQ(result.verdict, Verdict::Short);
  ASSERT_EQ(result.why.size(), 2U) << all(result.why);
  EXPECT_EQ(result.why[0], "dump, new file: under a limit");
}

TEST(Why, TellsTheNoteOfACaseThatLacksTheFigure) {
  const auto reports = dump_report({measured("ratio", "ratio", {0.97, 0.96, 0.99})}, "no limit here");
  const GoalResult result = judge({5, "cpu", {kCpu}}, reports, kCores);
  EXPECT_EQ(result.verdict, Verdict::NotMeasured);
  EXPECT_EQ(all(result.why), "dump, new file: cpu was not measured; no limit here\n");
}

TEST(GoalsTable, HasBarValueIntervalAndVerdict) {
  const auto reports = dump_report({measured("ratio", "ratio", {0.9, 0.85, 0.93})});
  const std::vector<GoalResult> results = {judge({1, "dump", {kRatio}}, reports, kCores),
                                           judge({5, "cpu", {kCpu}}, reports, kCores)};
  const std::string table = table_of(results);
  EXPECT_TRUE(has(table, ">= 0.95")) << table;
  EXPECT_TRUE(has(table, "0.900  [0.850, 0.930]      short")) << table;
  EXPECT_TRUE(has(table, "<= 0.1 s/GB")) << table;
  EXPECT_TRUE(has(table, "not measured")) << table;
  EXPECT_TRUE(has(table, "0 of 2 goals pass")) << table;
}

TEST(GoalsJson, HasWhatIsDocumented) {
  const auto reports = dump_report({measured("ratio", "ratio", {0.97, 0.96, 0.99})});
  const std::vector<GoalResult> results = {judge({1, "dump", {kRatio}}, reports, kCores),
                                           judge({2, "restore", {kRestore}}, reports, kCores)};
  const auto json = json_of(results);
  const auto& passed = json.at(0);
  EXPECT_EQ(passed.at("id"), 1);
  EXPECT_EQ(passed.at("name"), "dump");
  EXPECT_EQ(passed.at("bar"), 0.95);
  EXPECT_EQ(passed.at("value"), 0.97);
  EXPECT_EQ(passed.at("low"), 0.96);
  EXPECT_EQ(passed.at("high"), 0.99);
  EXPECT_EQ(passed.at("pass"), true);
  EXPECT_EQ(passed.at("bars").size(), 1U);
  EXPECT_TRUE(json.at(1).at("value").is_null());
  EXPECT_EQ(json.at(1).at("pass"), false);
  EXPECT_EQ(json.at(1).at("verdict"), "not measured");
}

// ---- the goals themselves

TEST(Goals, AreThoseOfSpeed) {
  std::set<unsigned> ids;
  for (const Goal& goal : goals()) {
    EXPECT_TRUE(ids.insert(goal.id).second) << goal.id;
    EXPECT_FALSE(goal.bars.empty()) << goal.id;
  }
  EXPECT_EQ(ids, (std::set<unsigned>{1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 14, 15, 16, 17, 18, 19}));
}

TEST(Machine, KnowsItself) {
  const Machine machine = machine_of("/");
  EXPECT_GT(machine.cores, 0U);
  EXPECT_GT(machine.memory_bytes, 0U);
  EXPECT_TRUE(machine.kernel.starts_with("Linux ")) << machine.kernel;
  EXPECT_FALSE(machine.commit.empty());
  EXPECT_EQ(machine.date.size(), std::string("2026-01-01T00:00:00Z").size());
  EXPECT_EQ(json_of(machine).at("cores"), machine.cores);
}

}  // namespace
}  // namespace sluice::bench
