// SPDX-License-Identifier: MIT
// Figures and tables from what was saved.
#include "plot/plot.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/units.h"
#include "plot/figures.h"
#include "plot/saved.h"
#include "plot/saved_trace.h"
#include "plot/tables.h"
#include "plot/timeline.h"
#include "plugin/contents/stats.h"
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

std::string trace_saved_as(const test::TempDir& directory, const std::string& text) {
  const std::string file = directory.path() + "/trace.json";
  std::ofstream(file) << text;
  return file;
}

// Chunks go through copy and store, one a millisecond, in turn through so many slots.
plugin::GpuOutcome traced_gpu(std::uint32_t gpu_id, std::uint64_t chunks, std::uint32_t slots) {
  plugin::GpuOutcome gpu;
  gpu.gpu_id = gpu_id;
  gpu.stats.stages = 2;
  gpu.stats.stage[0].name = "copy";
  gpu.stats.stage[1].name = "store";
  gpu.trace = Trace(2 * chunks);
  for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
    const std::uint64_t began_ns = 5'000'000'000 + chunk * 1'000'000;
    const auto slot = static_cast<std::uint32_t>(chunk % slots);
    gpu.trace.add({began_ns, began_ns + 250'000, chunk, slot, 0});
    gpu.trace.add({began_ns + 250'000, began_ns + 2'000'000, chunk, slot, 1});
  }
  return gpu;
}

// As the plugin writes the file.
std::string trace_of(const std::vector<plugin::GpuOutcome>& gpus) {
  std::string text;
  for (std::size_t number = 0; number < gpus.size(); ++number)
    text += (number == 0 ? "" : ",\n") + plugin::trace_events(Direction::Dump, number, gpus[number]);
  return "[\n" + text + "\n]\n";
}

SavedTrace saved_trace(const std::vector<plugin::GpuOutcome>& gpus) {
  const test::TempDir directory;
  auto trace = read_trace(trace_saved_as(directory, trace_of(gpus)));
  EXPECT_TRUE(trace.ok()) << trace.error().what;
  return trace.ok() ? *trace : SavedTrace();
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
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

TEST(SavedTrace, IsWhatThePluginWrote) {
  const std::vector<plugin::GpuOutcome> gpus = {traced_gpu(0x5759, 3, 2), traced_gpu(0x11, 1, 1)};
  const SavedTrace trace = saved_trace(gpus);
  EXPECT_EQ(trace.stages, (std::vector<std::string>{"copy", "store"}));
  ASSERT_EQ(trace.lanes.size(), 2U);
  EXPECT_EQ(trace.lanes[0].name, "dump GPU 0x5759");
  EXPECT_EQ(trace.lanes[1].name, "dump GPU 0x0011");
  for (std::size_t lane = 0; lane < 2; ++lane) {
    const auto& written = gpus[lane].trace.events();
    const auto& read = trace.lanes[lane].events;
    ASSERT_EQ(read.size(), written.size());
    for (std::size_t i = 0; i < read.size(); ++i) {
      EXPECT_EQ(read[i].began_ns, written[i].began_ns);
      EXPECT_EQ(read[i].ended_ns, written[i].ended_ns);
      EXPECT_EQ(read[i].chunk, written[i].chunk);
      EXPECT_EQ(read[i].slot, written[i].slot);
      EXPECT_EQ(read[i].stage, written[i].stage);
    }
  }
}

TEST(SavedTrace, OfSomethingElseIsRefusedAndNamed) {
  const test::TempDir directory;
  const std::string lane = R"([{"ph":"M","name":"process_name","pid":0,"args":{"name":"a lane"}},)";
  const struct {
    std::string text, complaint;
  } cases[] = {
      {"", "is no trace"},
      {"{}", "is no trace"},
      {lane, "is no trace"},
      {"[7]", "event 0: ph is no text"},
      {"[[]]", "event 0: ph is no text"},
      {R"([{"ph":"X"}])", "event 0: name is no text"},
      {R"([{"ph":"X","name":"copy","pid":0}])", "event 0: pid is no number below 0"},
      {R"([{"ph":"M","name":"process_name","pid":64,"args":{}}])", "event 0: pid is no number below 64"},
      {R"([{"ph":"M","name":"process_name","pid":1,"args":{}}])", "event 0: pid is not the next lane's"},
      {R"([{"ph":"M","name":"process_name","pid":0,"args":[]}])", "event 0: name is no text"},
      {R"([{"ph":"M","name":")" + std::string(65, 'x') + R"("}])", "event 0: name is no text of up to 64"},
      {lane + R"({"ph":"X","name":"copy","pid":0,"tid":-1}])", "event 1: tid is no number below 65536"},
      {lane + R"({"ph":"X","name":"copy","pid":0,"tid":1e3}])", "event 1: tid is no number below 65536"},
      {lane + R"({"ph":"X","name":"copy","pid":0,"tid":1,"ts":-1}])", "event 1: ts is no time"},
      {lane + R"({"ph":"X","name":"copy","pid":0,"tid":1,"ts":1,"dur":1e16}])", "event 1: dur is no time"},
      {lane + R"({"ph":"X","name":"copy","pid":0,"tid":1,"ts":1,"dur":1}])", "event 1: chunk is no number"},
  };
  for (const auto& each : cases) {
    const auto trace = read_trace(trace_saved_as(directory, each.text));
    ASSERT_FALSE(trace.ok()) << each.text;
    EXPECT_EQ(trace.error().err, EINVAL) << each.text;
    EXPECT_NE(trace.error().what.find(each.complaint), std::string::npos)
        << each.text << " gives: " << trace.error().what;
  }
  EXPECT_EQ(read_trace(directory.path() + "/none.json").error().err, ENOENT);
}

TEST(SavedTrace, StagesAreBounded) {
  const test::TempDir directory;
  std::string text = R"([{"ph":"M","name":"process_name","pid":0,"args":{"name":"a lane"}})";
  for (int stage = 0; stage < 9; ++stage)
    text += R"(,{"ph":"X","name":")" + std::to_string(stage) +
            R"(","pid":0,"tid":0,"ts":1,"dur":1,"args":{"chunk":1}})";
  const auto trace = read_trace(trace_saved_as(directory, text + "]"));
  ASSERT_FALSE(trace.ok());
  EXPECT_NE(trace.error().what.find("event 9: more than 8 stages"), std::string::npos) << trace.error().what;
}

TEST(SavedTrace, OneThatIsTooLargeIsNotRead) {
  const test::TempDir directory;
  const std::string file = trace_saved_as(directory, "[]");
  std::filesystem::resize_file(file, 512 * kMiB + 1);
  EXPECT_EQ(read_trace(file).error().err, EFBIG);
}

TEST(Timeline, HasABarForEachStayInTheRowOfItsSlot) {
  const auto drawing = timeline(saved_trace({traced_gpu(1, 3, 2), traced_gpu(2, 1, 1)}), "name");
  ASSERT_TRUE(drawing.ok()) << drawing.error().what;
  EXPECT_EQ(drawing->name, "name");
  // Slots 0 and 1 of the first lane, an empty row, slot 0 of the second; times from the first event.
  EXPECT_NE(drawing->script.find("$stage0 << EOD\n0.000 0.250 0\n1.000 1.250 1\n2.000 2.250 0\n"
                                 "0.000 0.250 3\nEOD\n"),
            std::string::npos)
      << drawing->script;
  EXPECT_NE(drawing->script.find("$stage1 << EOD\n0.250 2.000 0\n1.250 3.000 1\n2.250 4.000 0\n"
                                 "0.250 2.000 3\nEOD\n"),
            std::string::npos)
      << drawing->script;
  EXPECT_NE(drawing->script.find(R"(("dump GPU 0x0001" 0.5, "dump GPU 0x0002" 3))"), std::string::npos)
      << drawing->script;
  EXPECT_NE(drawing->script.find("set xrange [0:4]"), std::string::npos) << drawing->script;
  EXPECT_NE(drawing->script.find("title \"copy\""), std::string::npos) << drawing->script;
}

TEST(Timeline, OfALongTraceIsItsBeginning) {
  const auto drawing = timeline(saved_trace({traced_gpu(1, 4000, 16)}), "long");
  ASSERT_TRUE(drawing.ok()) << drawing.error().what;
  EXPECT_NE(drawing->script.find("the first 3001 of 4001 ms"), std::string::npos);
  EXPECT_EQ(count(drawing->script.substr(0, drawing->script.find("set ytics")), ".000 ") +
                count(drawing->script.substr(0, drawing->script.find("set ytics")), ".250 "),
            12000U)
      << "two times a bar";
}

TEST(Timeline, WithoutAChunkOrWithTooManyRowsIsRefused) {
  EXPECT_EQ(timeline(SavedTrace(), "empty").error().err, EINVAL);
  EXPECT_EQ(timeline(saved_trace({traced_gpu(1, 1024, 1024)}), "high").ok(), true);
  EXPECT_EQ(timeline(saved_trace({traced_gpu(1, 1025, 1025)}), "higher").error().err, EFBIG);
}

TEST(Plot, DrawsATrace) {
  const test::TempDir directory;
  const std::string out = directory.path() + "/new";
  const auto written = plot_trace(trace_saved_as(directory, trace_of({traced_gpu(1, 3, 2)})), out);
  if (!has_gnuplot()) {
    ASSERT_FALSE(written.ok());
    EXPECT_NE(written.error().what.find("apt-get install gnuplot-nox"), std::string::npos);
    return;
  }
  ASSERT_TRUE(written.ok()) << written.error().what;
  EXPECT_EQ(*written, "trace.svg");
  EXPECT_GT(std::filesystem::file_size(out + "/trace.svg"), 100U);
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

TEST(Plot, PutsTheTablesIntoADocument) {
  const test::TempDir directory;
  const std::filesystem::path document = directory.path() + "/page.md";
  std::ofstream(document) << "<!-- measured: dump -->\nold\n<!-- end -->\n";
  const auto written = plot(saved_as(directory, json_of(dump_report())), directory.path(), document);
  EXPECT_EQ(written.ok(), has_gnuplot());
  std::ostringstream text;
  text << std::ifstream(document).rdbuf();
  EXPECT_TRUE(text.str().starts_with("<!-- measured: dump -->\n\nbeside the raw disk")) << text.str();
  EXPECT_EQ(text.str().find("old"), std::string::npos);
  EXPECT_FALSE(directory.exists("tables.md"));
}

TEST(Plot, RefusesADocumentThatIsNotThere) {
  const test::TempDir directory;
  const auto written =
      plot(saved_as(directory, json_of(dump_report())), directory.path(), directory.path() + "/page.md");
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().err, ENOENT);
  EXPECT_FALSE(directory.exists("page.md"));
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
