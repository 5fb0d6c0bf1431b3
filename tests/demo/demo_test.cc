// SPDX-License-Identifier: MIT
// The demo, small: its exit status, its JSON, the corrupted image, and the arithmetic of its table.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

#include "base/units.h"
#include "demo_report.h"
#include "demo_runs.h"
#include "lookalike/harness.h"
#include "mounted_images.h"

extern char** environ;

namespace sluice::demo {
namespace {

using lookalike::Program;
using lookalike::program_directory;
using lookalike::read_file;
using lookalike::ScratchDirectory;
using lookalike::Strings;
using plugin_test::Mounts;

Strings our_environment() {
  Strings result;
  for (char** entry = environ; *entry != nullptr; ++entry) result.emplace_back(*entry);
  return result;
}

// Runs the demo; its exit status. What it says up to the first empty line goes to `output`.
int run_demo(const Strings& more, std::string* output = nullptr) {
  Strings arguments = {(program_directory() / "sluice-demo").string()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  Program demo(arguments, our_environment());
  std::string text;
  for (std::string line = demo.hear(); !line.empty(); line = demo.hear()) text += line + "\n";
  if (output != nullptr) *output = text;
  return demo.wait();
}

// "key": value pairs of the one flat object.
std::map<std::string, std::string> fields(const std::string& json) {
  std::map<std::string, std::string> result;
  std::size_t at = 0;
  while ((at = json.find('"', at)) != std::string::npos) {
    const std::size_t end = json.find('"', at + 1);
    const std::size_t value = json.find_first_not_of(": ", end + 1);
    result[json.substr(at + 1, end - at - 1)] = json.substr(value, json.find_first_of(",}", value) - value);
    at = json.find(',', value);
    if (at == std::string::npos) break;
  }
  return result;
}

TEST(DemoTest, VerifiesAndReportsWhatItSays) {
  const ScratchDirectory scratch;
  const std::string file = scratch.path() / "figures.json";
  ASSERT_EQ(run_demo({"--gpus", "3", "--vram", "16M", "--dir", scratch.path().string(), "--json", file}), 0);
  std::map<std::string, std::string> figures = fields(read_file(file));
  EXPECT_EQ(figures.size(), 12U);
  EXPECT_EQ(figures["gpus"], "3");
  EXPECT_EQ(figures["verified"], "true");
  for (const char* key : {"bos", "bytes", "zero_bytes", "dump_gbps", "restore_gbps", "raw_write_gbps",
                          "raw_read_gbps", "peak_rss_bytes", "pinned_bytes"}) {
    EXPECT_GT(std::strtod(figures[key].c_str(), nullptr), 0) << key;
  }
  EXPECT_GE(std::strtod(figures["bytes"].c_str(), nullptr), 3 * 16.0 * (1 << 20));
  // Nothing else is left in the directory.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), 1);
}

TEST(DemoTest, JsonOnStandardOutputIsAlone) {
  std::string output;
  ASSERT_EQ(run_demo({"--gpus", "1", "--vram", "16M", "--preset", "mi300x", "--json", "-"}, &output), 0);
  EXPECT_TRUE(output.starts_with("{\"processes\": 1, \"gpus\": 1,")) << output;
}

TEST(DemoTest, SeveralProcessesComeBack) {
  std::string output;
  ASSERT_EQ(run_demo({"--processes", "3", "--vram", "8M", "--json", "-"}, &output), 0);
  std::map<std::string, std::string> figures = fields(output);
  EXPECT_EQ(figures["processes"], "3");
  EXPECT_GE(std::strtod(figures["bytes"].c_str(), nullptr), 3 * 2 * 8.0 * (1 << 20));
}

TEST(DemoTest, SeveralRunsAreToldTogether) {
  const ScratchDirectory scratch;
  const std::string file = scratch.path() / "runs.json";
  ASSERT_EQ(run_demo({"--runs", "2", "--processes", "2", "--gpus", "1", "--vram", "8M", "--dir",
                      scratch.path().string(), "--json", file}),
            0);
  const auto report = bench::report_of(nlohmann::ordered_json::parse(read_file(file), nullptr, false));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->scenario, "tree");
  for (const char* name : {"dump", "restore"}) {
    const bench::Case* each = report->find(name);
    ASSERT_NE(each, nullptr) << name;
    for (const bench::Figure& figure : each->figures) EXPECT_EQ(figure.samples.size(), 2U) << figure.name;
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), 1);
}

TEST(DemoTest, ImagesStayWhereThatIsAskedFor) {
  const ScratchDirectory scratch;
  const std::string images = scratch.path() / "images";
  const Strings arguments = {"--gpus", "1", "--vram", "8M", "--images", images};
  ASSERT_EQ(run_demo(arguments), 0);
  EXPECT_TRUE(std::filesystem::exists(images + "/amdgpu-kfd-1.img"));
  EXPECT_TRUE(std::filesystem::exists(images + "/sluice-stats-restore-1.json"));
  EXPECT_EQ(run_demo(arguments), 2);  // others' images are not written over
}

TEST(DemoTest, ADumpOnAParentWritesWhatHasChanged) {
  const ScratchDirectory scratch;
  const std::string file = scratch.path() / "figures.json";
  ASSERT_EQ(run_demo({"--vram", "16M", "--parent", "--dir", scratch.path().string(), "--json", file}), 0);
  std::map<std::string, std::string> figures = fields(read_file(file));
  const auto figure = [&](const char* key) { return std::strtod(figures[key].c_str(), nullptr); };
  EXPECT_EQ(figures["verified"], "true");
  EXPECT_GT(figure("parent_bytes"), 0);
  EXPECT_LT(figure("written_bytes_on_parent"), figure("written_bytes") / 2);
  EXPECT_GT(figure("frozen_seconds"), 0);
  EXPECT_GT(figure("frozen_seconds_on_parent"), 0);
}

// The job changes memory between the two dumps, and says so and where both are.
TEST(DemoTest, WhatChangedBetweenTheDumpsIsInTheSecond) {
  const ScratchDirectory scratch;
  const std::string images = scratch.path() / "images";
  const std::string file = scratch.path() / "figures.json";
  const Strings arguments = {"--gpus", "1", "--vram", "16M", "--parent", "--images", images, "--json", file};
  std::string output;
  ASSERT_EQ(run_demo(arguments, &output), 0);
  EXPECT_NE(output.find("other data into one buffer"), std::string::npos) << output;
  std::map<std::string, std::string> figures = fields(read_file(file));
  EXPECT_GT(std::strtod(figures["written_bytes_on_parent"].c_str(), nullptr), 65536);
  std::filesystem::remove_all(images);
  EXPECT_EQ(run_demo(arguments), 2) << "the other directory is there already";
}

// On whatever file system the test runs.
TEST(DemoTest, GpusWithTheSameDataComeBack) {
  const ScratchDirectory scratch;
  const std::string file = scratch.path() / "figures.json";
  ASSERT_EQ(run_demo({"--gpus", "4", "--vram", "16M", "--replicas", "--dir", scratch.path().string(),
                      "--json", file}),
            0);
  std::map<std::string, std::string> figures = fields(read_file(file));
  EXPECT_EQ(figures["verified"], "true");
  EXPECT_EQ(figures["gpus"], "4");
  EXPECT_GT(std::strtod(figures["replica_bytes"].c_str(), nullptr), 3 * 8.0 * kMiB);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), 1);
}

TEST(DemoTest, WhatGpusHaveAlikeIsWrittenOnceWhereFilesShareExtents) {
  if (::geteuid() != 0 || !Mounts::unshared()) GTEST_SKIP() << "mounting needs root";
  Mounts mounts;
  const std::filesystem::path place = mounts.directory("place");
  if (!mounts.add_loop({"mkfs.xfs", "-q", "-m", "reflink=1"}, mounts.directory("file") / "image", 2 * kGiB,
                       place, ""))
    GTEST_SKIP() << "XFS cannot be made or mounted here";
  const std::string images = place / "images", file = mounts.directory("file") / "figures.json";
  ASSERT_EQ(run_demo({"--gpus", "4", "--vram", "64M", "--replicas", "--dir", place.string(), "--images",
                      images, "--json", file}),
            0);
  std::map<std::string, std::string> figures = fields(read_file(file));
  const auto figure = [&](const char* key) { return std::strtod(figures[key].c_str(), nullptr); };
  EXPECT_EQ(figures["verified"], "true");
  EXPECT_GT(figure("replica_bytes"), 3 * 40.0 * kMiB);
  EXPECT_LT(figure("disk_bytes") + figure("replica_bytes"), figure("disk_bytes_apart") * 1.1);
  EXPECT_TRUE(std::filesystem::exists(images + "-apart/amdgpu-kfd-1.img"));
}

TEST(DemoTest, ACorruptedImageIsRefused) {
  EXPECT_EQ(run_demo({"--vram", "16M", "--corrupt"}), 0);
}

TEST(DemoTest, HelpIsNoError) {
  std::string output;
  EXPECT_EQ(run_demo({"--help"}, &output), 0);
  EXPECT_NE(output.find("--gpus"), std::string::npos) << output;
}

TEST(DemoTest, BadArgumentsAndTooSmallMachinesAreUsageErrors) {
  EXPECT_EQ(run_demo({"--gpus", "0"}), 2);
  EXPECT_EQ(run_demo({"--processes", "17"}), 2);
  EXPECT_EQ(run_demo({"--vram", "many"}), 2);
  EXPECT_EQ(run_demo({"--runs", "0"}), 2);
  EXPECT_EQ(run_demo({"--runs", "2", "--corrupt"}), 2);
  EXPECT_EQ(run_demo({"--runs", "2", "--images", "images"}), 2);
  EXPECT_EQ(run_demo({"--runs", "2", "--parent"}), 2);
  EXPECT_EQ(run_demo({"--runs", "2", "--replicas"}), 2);
  EXPECT_EQ(run_demo({"--gpus", "1", "--replicas"}), 2);
  EXPECT_EQ(run_demo({"--parent", "--replicas"}), 2);
  EXPECT_EQ(run_demo({"--preset", "geforce"}), 2);
  EXPECT_EQ(run_demo({"--gpus", "16", "--vram", "8192G"}), 2);
}

TEST(DemoReportTest, RatesCountBytesThatReachTheDisk) {
  PluginStats stats;
  stats.bytes = 3'000'000'000;
  stats.zero_bytes = 1'000'000'000;
  stats.seconds = 2;
  EXPECT_DOUBLE_EQ(stats.gbps(), 1);
}

// A dump at 2 GB/s between raw writes of 1 and 3 GB/s, whose bytes need as long together as at 1.5.
TEST(DemoRunsTest, ARunStandsBesideTheDiskBeforeAndAfter) {
  const std::vector<RunRates> runs(3, {2, 1, 3, 1.9, 2, 2});
  const bench::Report report = report_of(1, 2, runs);
  EXPECT_EQ(report.scenario, "demo");
  const bench::Case* dump = report.find("dump");
  ASSERT_NE(dump, nullptr);
  EXPECT_DOUBLE_EQ(dump->find("ratio")->value.value, 2 / 1.5);
  EXPECT_DOUBLE_EQ(dump->find("time / raw time")->value.value, 1.5 / 2);
  EXPECT_EQ(dump->note, "ratio at least 0.950: pass");
  EXPECT_DOUBLE_EQ(report.find("restore")->find("ratio")->value.value, 0.95);
}

TEST(DemoRunsTest, ABarIsClearedByTheWholeInterval) {
  const auto notes = [](unsigned processes, std::initializer_list<double> dumps) {
    std::vector<RunRates> runs;
    for (const double dump : dumps) runs.push_back({dump, 1, 1, 1, 1, 1});
    const bench::Report report = report_of(processes, 2, runs);
    return report.find("dump")->note + "; " + report.find("restore")->note;
  };
  EXPECT_EQ(notes(1, {0.96, 0.99, 1}), "ratio at least 0.950: pass; ratio at least 0.950: pass");
  EXPECT_EQ(notes(1, {0.9, 0.99, 1}), "ratio at least 0.950: within noise; ratio at least 0.950: pass");
  EXPECT_EQ(notes(4, {0.92, 0.95, 1}), "time / raw time at most 1.100: pass; ");
  EXPECT_EQ(notes(4, {0.9, 0.95, 1}), "time / raw time at most 1.100: within noise; ");
  EXPECT_EQ(notes(1, {0.9, 0.91, 0.92}), "ratio at least 0.950: short; ratio at least 0.950: pass");
}

TEST(DemoReportTest, StatisticsOfSeveralFilesAreAddedUp) {
  const ScratchDirectory scratch;
  const std::map<std::string, std::string> times = {
      {"sluice-stats-dump-1.json", R"("began_ns": 1000000000, "ended_ns": 3000000000)"},
      {"sluice-stats-dump-7.json", R"("began_ns": 2000000000, "ended_ns": 3500000000)"}};
  for (const auto& [name, file_times] : times) {
    std::ofstream(scratch.path() / name)
        << R"({"id": 1, )" << file_times
        << R"(, "seconds": 9, "bytes": 100, "zero_bytes": 10, "io_bytes": 90, "pinned_bytes": 64,)"
        << R"( "gpus": [{"gpu_id": 5, "bytes": 1, "seconds": 9, "slowest_stage": "store"}]})";
  }
  std::ofstream(scratch.path() / "sluice-stats-restore-1.json") << R"({"bytes": 5})";
  const PluginStats stats = read_plugin_stats(scratch.path(), "dump");
  EXPECT_TRUE(stats.found);
  EXPECT_EQ(stats.bytes, 200U);
  EXPECT_EQ(stats.zero_bytes, 20U);
  EXPECT_EQ(stats.pinned_bytes, 128U);
  EXPECT_DOUBLE_EQ(stats.seconds, 2.5);
  EXPECT_EQ(stats.slowest_stage, "store");
}

}  // namespace
}  // namespace sluice::demo
