// SPDX-License-Identifier: MIT
// Every scenario at its smallest: it runs to its end, which it does only when the bytes were right, its
// report is consistent, and it leaves nothing behind. How fast is never asked. The scenario is named by the
// environment: one process of this program for each.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "command_run.h"
#include "report/report.h"
#include "support/temp_dir.h"

namespace sluice::bench {
namespace {

using cli_test::Ended;

Ended run(const std::vector<std::string>& arguments) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  return cli_test::run_command(arguments, environment);
}

Ended bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), SLUICE_BENCH);
  return run(arguments);
}

std::vector<std::string> words(const char* variable) {
  const char* text = std::getenv(variable);
  std::istringstream stream(text == nullptr ? "" : text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

void check(const Figure& figure) {
  ASSERT_FALSE(figure.samples.empty());
  const auto [least, most] = std::minmax_element(figure.samples.begin(), figure.samples.end());
  EXPECT_TRUE(std::isfinite(*least) && std::isfinite(*most));
  EXPECT_LE(*least, figure.value.low);
  EXPECT_LE(figure.value.low, figure.value.value);
  EXPECT_LE(figure.value.value, figure.value.high);
  EXPECT_LE(figure.value.high, *most);
}

// "ratio" is ours over theirs, pair by pair, wherever what it is compared with is a figure of the case.
void check_ratio(const Case& each) {
  const Figure* share = each.find("ratio");
  const Figure* ours = each.find("ours");
  if (share == nullptr || ours == nullptr) return;
  for (const char* name : {"one BO", "raw", "ceiling", "buffered", "serial", "dense"}) {
    const Figure* theirs = each.find(name);
    if (theirs == nullptr) continue;
    ASSERT_EQ(share->samples.size(), ours->samples.size());
    ASSERT_EQ(share->samples.size(), theirs->samples.size());
    for (std::size_t i = 0; i < share->samples.size(); ++i)
      EXPECT_NEAR(share->samples[i], ours->samples[i] / theirs->samples[i], 1e-9 * share->samples[i]);
    return;
  }
}

void check(const Report& report) {
  EXPECT_FALSE(report.what.empty());
  EXPECT_FALSE(report.cases.empty());
  for (const Case& each : report.cases) {
    SCOPED_TRACE(report.scenario + ": " + each.name);
    EXPECT_EQ(report.find(each.name), &each) << "another case has this name";
    // A case that could not be measured here says why.
    EXPECT_TRUE(!each.figures.empty() || !each.note.empty());
    for (const Figure& figure : each.figures) {
      SCOPED_TRACE(figure.name);
      EXPECT_FALSE(figure.unit.empty());
      check(figure);
    }
    check_ratio(each);
  }
}

nlohmann::ordered_json read_json(const std::string& file) {
  std::ifstream in(file);
  return nlohmann::ordered_json::parse(in, nullptr, false);
}

TEST(Scenario, RunsAndItsReportIsConsistent) {
  const std::vector<std::string> named = words("SLUICE_BENCH_SCENARIO");
  if (named.empty()) GTEST_SKIP() << "no scenario is named by SLUICE_BENCH_SCENARIO";
  const test::TempDir directory, report_directory;
  const std::string json = report_directory.path() + "/report.json";
  const Ended ended = bench({named[0], "--smoke", "--dir", directory.path(), "--json", json});
  EXPECT_TRUE(directory.names().empty()) << directory.names()[0] << " was left behind";
  if (named[0].find("cuda") != std::string::npos && ended.status == 1) {
    EXPECT_TRUE(ended.err.find("no CUDA driver on this machine") != std::string::npos ||
                ended.err.find("no GPU that CUDA can use") != std::string::npos)
        << ended.err;
    EXPECT_FALSE(report_directory.exists("report.json"));
    return;
  }
  ASSERT_EQ(ended.status, 0) << ended.err;
  const auto report = report_of(read_json(json));
  ASSERT_TRUE(report.ok()) << report.error().what;
  EXPECT_EQ(report->scenario, named[0]);
  EXPECT_EQ(ended.out, table_of(*report));
  check(*report);
}

// In a mount namespace of its own, which takes the file system with it.
TEST(Replicas, AreMeasuredWhereFilesShareExtents) {
  if (::geteuid() != 0) GTEST_SKIP() << "mounting needs root";
  constexpr int kNoXfs = 77;
  const test::TempDir directory;
  const std::string make =
      "cd " + directory.path() + " && PATH=$PATH:/usr/sbin:/sbin && truncate -s 2G image && " +
      "mkfs.xfs -q -m reflink=1 image && mkdir place && mount -o loop image place || exit " +
      std::to_string(kNoXfs) + "; ";
  const Ended ended =
      run({"/usr/bin/env", "unshare", "-m", "sh", "-c",
           make + "exec " + SLUICE_BENCH + " replicas --smoke --dir place --json report.json"});
  if (ended.status == kNoXfs) GTEST_SKIP() << "XFS cannot be made or mounted here: " << ended.err;
  ASSERT_EQ(ended.status, 0) << ended.err;
  const auto report = report_of(read_json(directory.path() + "/report.json"));
  ASSERT_TRUE(report.ok()) << report.error().what;
  check(*report);
  for (const Case& each : report->cases) EXPECT_FALSE(each.figures.empty()) << each.name;
  const auto space = [&](const char* name) { return report->find(name)->find("space")->value.value; };
  EXPECT_LT(space("eight equal lanes"), 2);
  EXPECT_LT(space("eight half-equal lanes"), 7);
  EXPECT_NE(report->find("eight equal lanes, restored cold"), nullptr);
}

// The list that the build makes tests of.
TEST(Scenarios, AreAllTested) {
  const std::vector<std::string> tested = words("SLUICE_BENCH_SCENARIOS");
  if (tested.empty()) GTEST_SKIP() << "no list in SLUICE_BENCH_SCENARIOS";
  std::istringstream help(bench({"--help"}).out);
  std::string line;
  while (std::getline(help, line) && line != "Subcommands:") continue;
  std::vector<std::string> subcommands;
  while (std::getline(help, line) && line.starts_with("  ")) {
    std::string name;
    std::istringstream(line) >> name;
    if (line[2] != ' ' && name != "goals") subcommands.push_back(name);
  }
  EXPECT_TRUE(std::is_permutation(tested.begin(), tested.end(), subcommands.begin(), subcommands.end()))
      << ::testing::PrintToString(subcommands);
}

TEST(Goals, RunOnlyWhatIsAskedForAndAreDrawn) {
  const test::TempDir directory, report_directory;
  const std::string json = report_directory.path() + "/goals.json";
  const Ended ended =
      bench({"goals", "--smoke", "--only", "3", "4", "--dir", directory.path(), "--json", json});
  ASSERT_EQ(ended.status, 0) << ended.err;
  EXPECT_TRUE(directory.names().empty());
  EXPECT_NE(ended.out.find(" of 2 goals pass"), std::string::npos) << ended.out;
  EXPECT_NE(ended.out.find("\nmeasured in "), std::string::npos) << ended.out;
  const auto saved = read_json(json);
  ASSERT_EQ(saved.at("goals").size(), 2U);
  EXPECT_EQ(saved.at("goals").at(0).at("id"), 3);
  EXPECT_EQ(saved.at("goals").at(1).at("id"), 4);
  for (const auto& goal : saved.at("goals")) EXPECT_NE(goal.at("verdict"), "not measured") << goal;
  EXPECT_EQ(saved.at("reports").size(), 2U);
  EXPECT_TRUE(saved.at("failed").empty());
  double seconds = 0;
  for (const auto& report : saved.at("reports")) seconds += report.at("seconds").get<double>();
  EXPECT_GT(seconds, 0);
  EXPECT_GE(saved.at("seconds").get<double>(), seconds);
  EXPECT_GT(saved.at("machine").at("cores"), 0);
  const std::string out = report_directory.path() + "/figures";
  const Ended drawn = run({"/usr/bin/env", "python3", "-B", SLUICE_BENCH_PLOT, json, "--out", out});
  EXPECT_TRUE(drawn.status == 0 || drawn.err.find("gnuplot-nox") != std::string::npos) << drawn.err;
  EXPECT_TRUE(std::ifstream(out + "/tables.md").good());
}

// In sysfs nothing is free. What was measured is not lost.
TEST(Goals, WithoutRoomForItsFilesAScenarioIsNotRun) {
  const test::TempDir report_directory;
  const std::string json = report_directory.path() + "/goals.json";
  const Ended ended = bench({"goals", "--quick", "--only", "12", "--dir", "/sys/kernel", "--json", json});
  EXPECT_EQ(ended.status, 1);
  EXPECT_NE(ended.out.find("it needs 2 GiB in /sys/kernel"), std::string::npos) << ended.out;
  const auto saved = read_json(json);
  EXPECT_EQ(saved.at("goals").at(0).at("verdict"), "not measured");
  EXPECT_EQ(saved.at("failed").at(0).at("scenario"), "stream");
}

TEST(Goals, OfOtherNumbersAreRefused) {
  EXPECT_NE(bench({"goals", "--only", "9"}).status, 0);
}

}  // namespace
}  // namespace sluice::bench
