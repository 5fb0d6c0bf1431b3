// SPDX-License-Identifier: MIT
// Figures and tables from what was saved.
#include "plot/plot.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "plot/figures.h"
#include "plot/saved.h"
#include "plot/tables.h"
#include "support/temp_dir.h"

namespace sluice::bench {
namespace {

Report dump_report() {
  return {"dump",
          "beside the raw disk",
          {{"new \"file\"",
            "a note",
            {ratio("ratio", {1, 2}, {2, 2}), figure("ours", "GB/s", {1, 2}), figure("raw", "GB/s", {2, 2}),
             figure("cpu", "s/GB", {0.1, 0.2}), figure("raw cpu", "s/GB", {0.03, 0.04})}}}};
}

Report bubble_report() {
  Report report{"bubble", "", {}};
  for (const char* copy : {"5", "10"}) {
    for (const char* checksum : {"5", "25"})
      report.cases.push_back(
          {std::string(copy) + "/" + checksum + "/10", "", {figure("overhead", "ratio", {1.01, 1.02})}});
  }
  return report;
}

Report memory_report() {
  Report report{"memory", "", {}};
  for (const char* name : {"pool 16 MiB", "pool 64 MiB", "pool 16 MiB, restore", "pool 64 MiB, restore"})
    report.cases.push_back({name, "", {figure("ours", "GB/s", {1, 2})}});
  return report;
}

std::vector<std::string> names(const std::vector<Drawing>& drawings) {
  std::vector<std::string> names;
  for (const Drawing& drawing : drawings) names.push_back(drawing.name);
  return names;
}

const nlohmann::ordered_json kGoals = nlohmann::ordered_json::parse(
    R"([{"id": 1, "name": "dump", "verdict": "short", "why": ["the disk was slow"],
         "bars": [{"bar": 0.95, "side": "at least", "unit": "ratio", "value": 0.9, "low": 0.8, "high": 0.93,
                   "scenario": "dump", "case": "new file", "figure": "ratio"}]}])");

std::string saved_as(const test::TempDir& directory, const nlohmann::ordered_json& json) {
  const std::string file = directory.path() + "/saved.json";
  std::ofstream(file) << json;
  return file;
}

bool has_gnuplot() {
  return std::system("gnuplot --version >/dev/null 2>&1") == 0;
}

TEST(Drawings, AreOfWhatWasMeasuredOnly) {
  EXPECT_TRUE(drawings({{}, {}, {}}).empty());
  EXPECT_EQ(names(drawings({{}, {}, {dump_report()}})), (std::vector<std::string>{"throughput", "cpu"}));
  EXPECT_EQ(names(drawings({{}, {}, {bubble_report(), memory_report()}})),
            (std::vector<std::string>{"bubble", "pool"}));
}

TEST(Drawings, AreTheSameForTheSameReports) {
  const Saved saved{{}, {}, {dump_report(), bubble_report(), memory_report()}};
  const auto first = drawings(saved), second = drawings(saved);
  ASSERT_EQ(first.size(), second.size());
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i].script, second[i].script);
}

TEST(Drawings, TextFromAFileCommandsNobody) {
  Report report = dump_report();
  report.cases[0].name = "`run`\nEOD\nset output \"elsewhere\" \\";
  for (const Drawing& drawing : drawings({{}, {}, {report}})) {
    EXPECT_EQ(drawing.script.find('`'), std::string::npos) << drawing.script;
    EXPECT_NE(drawing.script.find(R"("dump: 'run'?EOD?set output \"elsewhere\" \\")"), std::string::npos)
        << drawing.script;
  }
}

TEST(Tables, HaveTheGoalsAndARowForEachCase) {
  const std::string text = markdown_of({kGoals, {{"cpu", "fast"}, {"cores", 2}}, {dump_report()}});
  for (const char* line :
       {"| cpu | fast |\n", "| cores | 2 |\n",
        "| 1 | dump | dump: new file, ratio | ≥ 0.95 | 0.900 [0.800, 0.930] | short |\n",
        "- Goal 1: the disk was slow.\n", "| case | ratio | ours | raw | cpu | raw cpu |\n",
        "| new \"file\" | 0.750 [0.500, 1.000] | 1.500 [1.000, 2.000] GB/s | 2.000 GB/s |",
        "- new \"file\": a note\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "is not in:\n" << text;
}

TEST(Tables, AreFilledInWhereADocumentHasAPlace) {
  const std::string document =
      "Text.\n<!-- measured: dump -->\nold\n<!-- end -->\nMore.\n<!-- measured: cuda -->\nkept\n<!-- end "
      "-->\n";
  const Saved saved{{}, {}, {dump_report()}};
  const std::string filled = filled_in(document, saved);
  EXPECT_TRUE(filled.starts_with("Text.\n<!-- measured: dump -->\n\nbeside the raw disk")) << filled;
  EXPECT_TRUE(filled.ends_with("\n<!-- end -->\nMore.\n<!-- measured: cuda -->\nkept\n<!-- end -->\n"))
      << filled;
  EXPECT_EQ(filled.find("old"), std::string::npos);
  EXPECT_EQ(filled_in(filled, saved), filled);
}

TEST(Saved, IsReadFromGoalsAndFromOneScenario) {
  const test::TempDir directory;
  const auto one = read_saved(saved_as(directory, json_of(dump_report())));
  ASSERT_TRUE(one.ok()) << one.error().what;
  EXPECT_NE(one->find("dump"), nullptr);
  const auto all = read_saved(saved_as(
      directory, {{"goals", kGoals}, {"machine", {{"cores", 2}}}, {"reports", {json_of(dump_report())}}}));
  ASSERT_TRUE(all.ok()) << all.error().what;
  EXPECT_EQ(all->goals, kGoals);
  EXPECT_EQ(all->reports.size(), 1U);
  EXPECT_EQ(all->find("restore"), nullptr);
}

TEST(Saved, OfSomethingElseIsRefused) {
  const test::TempDir directory;
  EXPECT_EQ(read_saved(saved_as(directory, nlohmann::ordered_json::array())).error().err, EINVAL);
  EXPECT_EQ(read_saved(saved_as(directory, {{"reports", {1}}})).error().err, EINVAL);
  EXPECT_EQ(read_saved(directory.path() + "/none.json").error().err, ENOENT);
}

TEST(Plot, WritesTablesAndFigures) {
  const test::TempDir directory;
  const std::string out = directory.path() + "/new/directory";
  const auto written = plot(
      saved_as(directory,
               {{"reports", {json_of(dump_report()), json_of(bubble_report()), json_of(memory_report())}}}),
      out);
  EXPECT_TRUE(std::filesystem::exists(out + "/tables.md"));
  if (!has_gnuplot()) {
    ASSERT_FALSE(written.ok());
    EXPECT_NE(written.error().what.find("apt-get install gnuplot-nox"), std::string::npos);
    return;
  }
  ASSERT_TRUE(written.ok()) << written.error().what;
  EXPECT_EQ(*written,
            (std::vector<std::string>{"tables.md", "throughput.svg", "cpu.svg", "bubble.svg", "pool.svg"}));
  for (const std::string& name : *written)
    EXPECT_GT(std::filesystem::file_size(std::filesystem::path(out) / name), 100U) << name;
}

TEST(Plot, SaysThatThereIsNoGnuplot) {
  const test::TempDir directory;
  const std::string path = ::getenv("PATH");
  ASSERT_EQ(::setenv("PATH", directory.path().c_str(), 1), 0);
  const auto written = plot(saved_as(directory, json_of(dump_report())), directory.path());
  ASSERT_EQ(::setenv("PATH", path.c_str(), 1), 0);
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().what, "figures need gnuplot: apt-get install gnuplot-nox");
  EXPECT_TRUE(directory.exists("tables.md"));
  EXPECT_FALSE(directory.exists("throughput.svg"));
}

}  // namespace
}  // namespace sluice::bench
