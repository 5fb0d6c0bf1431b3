// SPDX-License-Identifier: MIT
// The statistics are JSON that a JSON parser takes, with the figures that went in.
#include "plugin/contents/stats.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace sluice::plugin {
namespace {

GpuOutcome sample(std::uint32_t gpu_id) {
  GpuOutcome gpu;
  gpu.gpu_id = gpu_id;
  gpu.bos = 3;
  gpu.bytes = 1000;
  gpu.zero_bytes = 400;
  gpu.io_bytes = 600;
  gpu.parent_bytes = 100;
  gpu.replica_bytes = 30;
  gpu.skipped_bytes = 50;
  gpu.pinned_bytes = 64;
  gpu.began_ns = 1'000'000'000;
  gpu.ended_ns = 1'500'000'000;
  gpu.direct_io = true;
  gpu.stats.stages = 2;
  gpu.stats.stage[0].name = "copy";
  gpu.stats.stage[1].name = "store";
  gpu.stats.stage[1].busy_ns = 10;
  gpu.stats.elapsed_ns = 20;
  return gpu;
}

TEST(Stats, JsonHasEveryFigureAndTheSums) {
  const std::vector<GpuOutcome> gpus = {sample(1), sample(2)};
  const auto json = nlohmann::json::parse(stats_json(7, {3, 5, 1'250'000'003, 500'000'000}, gpus));
  EXPECT_EQ(json["id"], 7);
  EXPECT_DOUBLE_EQ(json["seconds"], 1.25);
  EXPECT_EQ(json["began_ns"], 3);
  EXPECT_EQ(json["joined_ns"], 5);
  EXPECT_EQ(json["ended_ns"], 1'250'000'003);
  EXPECT_EQ(json["bytes"], 2000);
  EXPECT_EQ(json["zero_bytes"], 800);
  EXPECT_EQ(json["io_bytes"], 1200);
  EXPECT_EQ(json["parent_bytes"], 200);
  EXPECT_EQ(json["replica_bytes"], 60);
  EXPECT_EQ(json["skipped_bytes"], 100);
  EXPECT_EQ(json["pinned_bytes"], 128);
  EXPECT_DOUBLE_EQ(json["frozen_seconds"], 0.5);
  ASSERT_EQ(json["gpus"].size(), 2U);
  EXPECT_EQ(json["gpus"][1]["gpu_id"], 2);
  EXPECT_EQ(json["gpus"][1]["parent_bytes"], 100);
  EXPECT_EQ(json["gpus"][1]["replica_bytes"], 30);
  EXPECT_EQ(json["gpus"][1]["skipped_bytes"], 50);
  EXPECT_EQ(json["gpus"][1]["began_ns"], 1'000'000'000);
  EXPECT_DOUBLE_EQ(json["gpus"][1]["seconds"], 0.5);
  EXPECT_EQ(json["gpus"][1]["slowest_stage"], "store");
  EXPECT_EQ(json["gpus"][1]["direct_io"], true);
  EXPECT_EQ(json["gpus"][1]["verified"], false);
}

TEST(Stats, JsonOfNoGpuIsStillJson) {
  EXPECT_TRUE(nlohmann::json::parse(stats_json(1, {}, {}))["gpus"].empty());
}

TEST(Trace, IsJsonWithEachStayOfAChunk) {
  GpuOutcome gpu = sample(0x5759);
  gpu.trace = Trace(2);
  gpu.trace.add({1'000'500, 2'000'000, 3, 1, 0});
  gpu.trace.add({2'000'000, 2'000'250, 3, 1, 1});
  gpu.trace.add({3'000'000, 4'000'000, 4, 0, 0});  // more than there was room for
  const auto json = nlohmann::json::parse("[" + trace_events(Direction::Dump, 5, gpu) + "]");
  ASSERT_EQ(json.size(), 1U + 2U + 2U) << "the GPU, its slots, their events";
  EXPECT_EQ(json[0]["args"]["name"], "dump GPU 0x5759");
  EXPECT_EQ(json[2]["args"]["name"], "slot 1");
  const auto& copy = json[3];
  EXPECT_EQ(copy["name"], "copy");
  EXPECT_EQ(copy["pid"], 5);
  EXPECT_EQ(copy["tid"], 1);
  EXPECT_DOUBLE_EQ(copy["ts"], 1000.5);
  EXPECT_DOUBLE_EQ(copy["dur"], 999.5);
  EXPECT_EQ(copy["args"]["chunk"], 3);
  EXPECT_EQ(json[4]["name"], "store");
}

TEST(Stats, SummaryNamesGpuAndSlowestStage) {
  const std::string line = summary_line(Direction::Dump, sample(0x5759));
  EXPECT_NE(line.find("0x5759"), std::string::npos);
  EXPECT_NE(line.find("slowest stage store"), std::string::npos);
}

}  // namespace
}  // namespace sluice::plugin
