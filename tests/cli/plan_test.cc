// SPDX-License-Identifier: MIT
// `sluice plan`: a described machine is read strictly, and what is foretold of it is printed.
#include "cli/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/units.h"
#include "made_images.h"

namespace sluice::cli_test {
namespace {

constexpr char kNode[] = R"({
  "gpus": [{"count": 8, "bytes": "160G", "zero": 0.25, "copy": 50, "link": 55}],
  "disks": [{"count": 4, "write": 6.5, "read": 7}],
  "cpus": 96,
  "checksum": 17
})";

// kNode with the first `from` replaced.
std::string node_with(const std::string& from, const std::string& to) {
  std::string text = kNode;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string complaint(const std::string& text) {
  const auto machine = cli::parse_machine(text);
  return machine ? "none" : machine.error().what;
}

TEST(ParseMachine, TakesWhatIsSaidAndDefaults) {
  const auto machine = cli::parse_machine(kNode);
  ASSERT_TRUE(machine.ok()) << machine.error().what;
  ASSERT_EQ(machine->gpus.size(), 1U);
  const cli::GpuGroup& gpus = machine->gpus[0];
  EXPECT_EQ(gpus.count, 8U);
  EXPECT_EQ(gpus.bytes, 160 * kGiB);
  EXPECT_EQ(gpus.zero, 0.25);
  EXPECT_EQ(gpus.copy_rate, 50e9);
  EXPECT_EQ(gpus.link_rate, 55e9);
  EXPECT_EQ(gpus.per_link, 1U);
  ASSERT_EQ(machine->disks.size(), 1U);
  EXPECT_EQ(machine->disks[0].count, 4U);
  EXPECT_EQ(machine->disks[0].write_rate, 6.5e9);
  EXPECT_EQ(machine->disks[0].read_rate, 7e9);
  EXPECT_EQ(machine->cpus, 96U);
  EXPECT_EQ(machine->checksum_rate, 17e9);

  const auto least = cli::parse_machine(
      R"({"gpus": [{"bytes": 4096, "copy": 1}], "disks": [{"write": 1, "read": 1}], "cpus": 1, "checksum": 1})");
  ASSERT_TRUE(least.ok()) << least.error().what;
  EXPECT_EQ(least->gpus[0].count, 1U);
  EXPECT_EQ(least->gpus[0].bytes, 4096U);
  EXPECT_EQ(least->gpus[0].zero, 0);
  EXPECT_EQ(least->gpus[0].link_rate, 0);
}

TEST(ParseMachine, SaysWhereAndWhatIsWrong) {
  EXPECT_THAT(complaint("{"), HasSubstr("[SL-T37]"));
  EXPECT_THAT(complaint("1e999"), HasSubstr("[SL-T37]"));
  EXPECT_THAT(complaint("[]"), HasSubstr("this should be an object: {...}"));
  EXPECT_THAT(complaint("{}"), HasSubstr("\"gpus\" should be a list with an element or more"));
  EXPECT_THAT(complaint(node_with("\"cpus\": 96,", "")), HasSubstr("\"cpus\" should be a number from 1"));
  EXPECT_THAT(complaint(node_with("96", "1.5")), HasSubstr("\"cpus\" should be a whole number"));
  EXPECT_THAT(complaint(node_with("\"160G\"", "\"much\"")), HasSubstr("gpus[0], \"bytes\" should be a size"));
  EXPECT_THAT(complaint(node_with("\"160G\"", "0")), HasSubstr("gpus[0], \"bytes\" should be a size"));
  EXPECT_THAT(complaint(node_with("\"160G\"", "\"2000000G\"")), HasSubstr("at most 1.00 PiB"));
  EXPECT_THAT(complaint(node_with("0.25", "25")),
              HasSubstr("gpus[0], \"zero\" should be a number from 0 to 1"));
  EXPECT_THAT(complaint(node_with("50", "0")), HasSubstr("gpus[0], \"copy\" should be a number"));
  EXPECT_THAT(complaint(node_with("50", "-50")), HasSubstr("gpus[0], \"copy\" should be a number"));
  EXPECT_THAT(complaint(node_with("7}", "\"7\"}")), HasSubstr("disks[0], \"read\" should be a number"));
  EXPECT_THAT(complaint(node_with("copy", "copi\\u001b")), HasSubstr("gpus[0], \"copy\" should be a number"));
  EXPECT_THAT(complaint(node_with("link", "li\\u001bnk")),
              HasSubstr("gpus[0], \"li?nk\" is not a known name"));
  EXPECT_THAT(complaint(node_with("\"count\": 8", "\"count\": 257")), HasSubstr("from 1 to 256"));
  EXPECT_THAT(
      complaint(node_with("[{\"count\": 8, \"bytes\": \"160G\", \"zero\": 0.25, \"copy\": 50, \"link\": 55}]",
                          "[{\"count\": 200, \"bytes\": 1, \"copy\": 1}, "
                          "{\"count\": 57, \"bytes\": 1, \"copy\": 1}]")),
      HasSubstr("more than 256"));
  EXPECT_THAT(complaint(std::string(100000, '[')), HasSubstr("[SL-T37]"));
  EXPECT_THAT(complaint(R"({"gpus": 7})"), HasSubstr("\"gpus\" should be a list with an element or more"));
  EXPECT_THAT(complaint(R"({"gpus": []})"), HasSubstr("\"gpus\" should be a list with an element or more"));
  EXPECT_THAT(complaint(R"({"gpus": [7]})"), HasSubstr("gpus[0] should be an object"));
  EXPECT_THAT(complaint(node_with("\"bytes\": \"160G\", ", "")),
              HasSubstr("gpus[0], \"bytes\" should be a size"));
  EXPECT_THAT(complaint(node_with("\"160G\"", "160.5")), HasSubstr("gpus[0], \"bytes\" should be a size"));
  EXPECT_THAT(complaint(node_with("55", "-1")), HasSubstr("gpus[0], \"link\" should be a number"));
  EXPECT_THAT(complaint(node_with("\"link\": 55", "\"gpus_per_link\": 0")),
              HasSubstr("gpus[0], \"gpus_per_link\""));
  EXPECT_THAT(complaint(node_with("\"disks\"", "\"disk\"")), HasSubstr("\"disks\" should be a list"));
  EXPECT_THAT(complaint(node_with("[{\"count\": 4", "[7, {\"count\": 4")),
              HasSubstr("disks[0] should be an object"));
  EXPECT_THAT(complaint(node_with("\"count\": 4", "\"count\": 0")),
              HasSubstr("disks[0], \"count\" should be a number"));
  EXPECT_THAT(complaint(node_with("6.5", "\"fast\"")), HasSubstr("disks[0], \"write\" should be a number"));
  EXPECT_THAT(complaint(node_with("\"read\": 7", "\"read\": 7, \"size\": 1")),
              HasSubstr("disks[0], \"size\" is not a known name"));
  EXPECT_THAT(complaint(node_with("17", "0")), HasSubstr("\"checksum\" should be a number"));
  EXPECT_THAT(complaint(node_with("\"cpus\"", "\"sockets\": 2, \"cpus\"")),
              HasSubstr("\"sockets\" is not a known name"));
}

class PlanTest : public ::testing::Test {
 protected:
  std::string file(const std::string& text) const {
    std::ofstream(directory_.path() / "node.json") << text;
    return (directory_.path() / "node.json").string();
  }

  lookalike::ScratchDirectory directory_;
};

TEST_F(PlanTest, PrintsBothTimesAndWhatSetsThePace) {
  const Ended ended = sluice({"plan", file(kNode)}, nullptr);
  EXPECT_EQ(ended.status, 0);
  EXPECT_EQ(ended.err, "");
  // 960 GiB are not zero; four disks take 26 GB/s of them, and give 28.
  EXPECT_THAT(ended.out, HasSubstr("8 GPUs with 1.25 TiB, 25 % of it zero; 4 disks, 96 CPUs\n"));
  EXPECT_THAT(ended.out, HasSubstr("dump     40 s  34.67 GB/s  disks"));
  EXPECT_THAT(ended.out, HasSubstr("restore  37 s  37.33 GB/s  disks"));
  EXPECT_THAT(ended.out, HasSubstr("needs 960 GiB on the disks, 256 MiB of pinned staging memory\n"));
}

TEST_F(PlanTest, JsonHasTheSame) {
  const nlohmann::json object = object_of(sluice({"plan", "--json", file(kNode)}, nullptr));
  EXPECT_EQ(object["result"], "done");
  EXPECT_EQ(object["gpus"], 8);
  EXPECT_EQ(object["gpu_bytes"], 1280 * kGiB);
  EXPECT_EQ(object["image_bytes"], 960 * kGiB);
  EXPECT_EQ(object["pinned_bytes"], 256 * kMiB);
  EXPECT_NEAR(object["dump"]["seconds"], 960.0 * kGiB / 26e9, 0.01);
  EXPECT_EQ(object["dump"]["slowest"], "disks");
  EXPECT_NEAR(object["dump"]["busy"]["disks"], 1, 0.001);
  EXPECT_NEAR(object["dump"]["seconds_without_slowest"], 160.0 * kGiB / 50e9, 0.01);
  EXPECT_EQ(object["restore"]["then_slowest"], "copy");
  EXPECT_FALSE(object.contains("dump_with_parent"));
}

// 5 % of 960 GiB are written: the GPUs' own copies are the slowest then.
TEST_F(PlanTest, TellsHowLongTheJobIsStoppedForWhatHasChanged) {
  const std::string path = file(node_with("\"zero\"", "\"changed\": 0.05, \"zero\""));
  const Ended ended = sluice({"plan", path}, nullptr);
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("dump                40 s"));
  EXPECT_THAT(ended.out, HasSubstr("dump with a parent   3 s  399.98 GB/s  copy"));
  EXPECT_THAT(ended.out, HasSubstr("48.0 GiB more for each dump with a parent"));
  const nlohmann::json object = object_of(sluice({"plan", "--json", path}, nullptr));
  EXPECT_NEAR(object["changed_bytes"].get<double>(), 48.0 * kGiB, 16);
  EXPECT_NEAR(object["dump_with_parent"]["seconds"], 160.0 * kGiB / 50e9, 0.01);
  EXPECT_NEAR(object["dump"]["seconds"], 960.0 * kGiB / 26e9, 0.01);
  EXPECT_THAT(complaint(node_with("\"zero\": 0.25", "\"changed\": 5")), HasSubstr("gpus[0], \"changed\""));
}

// Each GPU has 120 GiB that are not zero; half of them are on the disks once.
TEST_F(PlanTest, WhatGpusHaveAlikeIsOnTheDisksOnce) {
  const std::string path = file(node_with("\"zero\"", "\"alike\": 0.5, \"zero\""));
  const nlohmann::json object = object_of(sluice({"plan", "--json", path}, nullptr));
  EXPECT_NEAR(object["image_bytes"].get<double>(), (120.0 + 7 * 60) * kGiB, 16);
  EXPECT_LT(object["dump"]["seconds"].get<double>(), 960.0 * kGiB / 26e9);
  EXPECT_GE(object["dump"]["seconds"].get<double>(), 540.0 * kGiB / 26e9);
  EXPECT_GE(object["restore"]["seconds"].get<double>(), 540.0 * kGiB / 28e9);
  EXPECT_THAT(complaint(node_with("\"zero\": 0.25", "\"alike\": 2")), HasSubstr("gpus[0], \"alike\""));
}

TEST_F(PlanTest, StagingMemoryIsAsItIsSet) {
  const nlohmann::json object =
      object_of(sluice({"plan", "--json", file(kNode)}, nullptr, {"SLUICE_STAGING_SIZE=128M"}));
  EXPECT_EQ(object["pinned_bytes"], 1024 * kMiB);
}

TEST_F(PlanTest, AFileThatDescribesNoMachineIsAFailure) {
  const std::string path = file("{}");
  const Ended ended = sluice({"plan", path}, nullptr);
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_EQ(ended.out, "");
  EXPECT_THAT(ended.err, HasSubstr(path + ": \"gpus\" should be a list"));
  EXPECT_EQ(sluice({"plan", path + ".not"}, nullptr).status, kFailed);
  EXPECT_THAT(sluice({"plan", file(std::string(kMiB + 1, ' '))}, nullptr).err,
              HasSubstr("node.json is larger than"));
  (void)file("{}");
  for (const std::string& wrong : {path, path + ".not"}) {
    const nlohmann::json object = object_of(sluice({"plan", "--json", wrong}, nullptr));
    EXPECT_EQ(object["result"], "failed");
    EXPECT_THAT(object["message"].get<std::string>(), HasSubstr(" [SL-T3"));
    EXPECT_THAT(object["remedy"].get<std::string>(), HasSubstr("docs/measurements/planning.md"));
  }
  EXPECT_EQ(sluice({"plan"}, nullptr).status, kUsage);
}

}  // namespace
}  // namespace sluice::cli_test
