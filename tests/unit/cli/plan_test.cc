// SPDX-License-Identifier: MIT
// How long flows take, by arithmetic that a reader can do in his head.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/units.h"
#include "cli/plan/flow_times.h"
#include "cli/plan/planned_machine.h"
#include "pipeline/slot_workers.h"
#include "support/rng.h"
#include "support/seeds.h"

namespace sluice::cli {
namespace {

// ---- flows

TEST(FlowTimes, TheSlowestServerAloneSetsThePaceAndOneChunkGoesThroughTheOthers) {
  const std::array rates = {100.0, 50.0, 200.0};
  const std::array flows = {Flow{1000, 10, {{0}, {1}, {2}}}};
  const FlowTimes times = flow_times(rates, flows);
  EXPECT_DOUBLE_EQ(times.seconds, 1000 / 50.0 + 10 / 100.0 + 10 / 200.0);
  EXPECT_DOUBLE_EQ(times.busy[0], 10);
  EXPECT_DOUBLE_EQ(times.busy[1], 20);
  EXPECT_DOUBLE_EQ(times.busy[2], 5);
}

TEST(FlowTimes, AFlowOfLessThanAChunkFillsWithWhatItHas) {
  const std::array rates = {100.0, 50.0};
  const std::array flows = {Flow{5, 10, {{0}, {1}}}};
  EXPECT_DOUBLE_EQ(flow_times(rates, flows).seconds, 5 / 100.0 + 5 / 50.0);
}

TEST(FlowTimes, OnlyThePortionThatComesToAServerTakesItsTime) {
  const std::array rates = {100.0, 50.0};
  const std::array flows = {Flow{1000, 0, {{0, 1}, {1, 0.25}}}};
  const FlowTimes times = flow_times(rates, flows);
  EXPECT_DOUBLE_EQ(times.seconds, 10);
  EXPECT_DOUBLE_EQ(times.busy[1], 5);
}

TEST(FlowTimes, WhoEndsLeavesHisPartToTheOthers) {
  const std::array rates = {100.0};
  const std::array flows = {Flow{100, 0, {{0}}}, Flow{300, 0, {{0}}}};
  const FlowTimes times = flow_times(rates, flows);
  EXPECT_DOUBLE_EQ(times.ends[0], 2);  // at half of the rate
  EXPECT_DOUBLE_EQ(times.ends[1], 4);  // and then at all of it
}

TEST(FlowTimes, WhoIsSlowElsewhereLeavesWhatHeCannotUse) {
  const std::array rates = {100.0, 20.0};
  const std::array flows = {Flow{100, 0, {{0}, {1}}}, Flow{400, 0, {{0}}}};
  const FlowTimes times = flow_times(rates, flows);
  EXPECT_DOUBLE_EQ(times.ends[0], 5);
  EXPECT_DOUBLE_EQ(times.ends[1], 5);
}

TEST(FlowTimes, NothingTakesNoTime) {
  const std::array rates = {100.0};
  const std::array flows = {Flow{0, 10, {{0}}}, Flow{100, 10, {}}, Flow{100, 10, {{0, 0}}}};
  EXPECT_EQ(flow_times(rates, flows).seconds, 0);
  EXPECT_EQ(flow_times(rates, {}).seconds, 0);
}

TEST(FlowTimes, NoServerDoesMoreThanItCanAndTheTimeIsNeverLongerThanOneAfterTheOther) {
  const test::Seeds seeds = test::seeds_of_test(200);
  for (std::uint64_t seed = seeds.first; seed < seeds.first + seeds.count; ++seed) {
    SCOPED_TRACE(test::replay_with(seed));
    test::Rng rng(seed);
    std::vector<double> rates;
    for (std::uint64_t i = rng.between(1, 6); i > 0; --i)
      rates.push_back(static_cast<double>(rng.between(1, 1000)));
    std::vector<Flow> flows;
    double one_after_the_other = 0;
    for (std::uint64_t i = rng.between(1, 12); i > 0; --i) {
      Flow flow{static_cast<double>(rng.between(0, 100000)), 0, {}};
      double slowest = 0;
      for (std::size_t server = 0; server < rates.size(); ++server) {
        if (rng.between(0, 1) == 0) continue;
        const double portion = static_cast<double>(rng.between(0, 4)) / 4;
        flow.route.push_back({server, portion});
        slowest = std::max(slowest, flow.bytes * portion / rates[server]);
      }
      one_after_the_other += slowest;
      flows.push_back(std::move(flow));
    }
    const FlowTimes times = flow_times(rates, flows);
    const double longest = *std::max_element(times.busy.begin(), times.busy.end());
    EXPECT_GE(times.seconds, longest * (1 - 1e-6));
    EXPECT_LE(times.seconds, one_after_the_other * (1 + 1e-6));
  }
}

// ---- machines

double seconds_at(double bytes, double rate) {
  return bytes / rate;
}

class MachineTest : public ::testing::Test {
 protected:
  // Eight GPUs whose memory the disks are the slowest to take.
  Machine machine_{{{8, kGiB, 0, 50e9, 0, 1}}, {{4, 5e9, 6e9}}, 96, 10e9};
};

TEST_F(MachineTest, DisksAddUpAndAllGpusShareThem) {
  const Forecast dump = forecast(machine_, Direction::Dump, 0);
  EXPECT_NEAR(dump.seconds, seconds_at(8 * kGiB, 20e9), 1e-9);
  EXPECT_EQ(dump.slowest, Part::Disk);
  EXPECT_NEAR(dump.busy[static_cast<std::size_t>(Part::Disk)], 1, 1e-9);
  EXPECT_NEAR(dump.busy[static_cast<std::size_t>(Part::Copy)], 20e9 / (8 * 50e9), 1e-9);
  EXPECT_NEAR(forecast(machine_, Direction::Restore, 0).seconds, seconds_at(8 * kGiB, 24e9), 1e-9);
}

TEST_F(MachineTest, WithoutAPartTheNextOneIsSeen) {
  const Forecast rest = forecast(machine_, Direction::Dump, 0, Part::Disk);
  EXPECT_EQ(rest.slowest, Part::Checksum);  // four workers a lane
  EXPECT_NEAR(rest.seconds, seconds_at(kGiB, 40e9), 1e-9);
}

TEST_F(MachineTest, GpusOnOneLinkShareIt) {
  machine_.disks[0].count = 1000;
  machine_.gpus[0].link_rate = 30e9;
  machine_.gpus[0].per_link = 4;
  const Forecast dump = forecast(machine_, Direction::Dump, 0);
  EXPECT_EQ(dump.slowest, Part::Link);
  EXPECT_NEAR(dump.seconds, seconds_at(4 * kGiB, 30e9), 1e-9);
}

TEST_F(MachineTest, ZerosAreCopiedAndHashedButNotWrittenAndNotRead) {
  machine_.gpus[0].zero = 0.75;
  EXPECT_NEAR(forecast(machine_, Direction::Dump, 0).seconds, seconds_at(2 * kGiB, 20e9), 1e-9);
  EXPECT_EQ(machine_.nonzero_bytes(), 2 * kGiB);
  machine_.gpus[0].zero = 1;
  const Forecast dump = forecast(machine_, Direction::Dump, 0);
  EXPECT_EQ(dump.slowest, Part::Checksum);
  EXPECT_NEAR(dump.seconds, seconds_at(kGiB, 40e9), 1e-9);
  const Forecast restore = forecast(machine_, Direction::Restore, 0);
  EXPECT_EQ(restore.slowest, Part::Copy);
  EXPECT_NEAR(restore.seconds, seconds_at(kGiB, 50e9), 1e-9);
}

TEST_F(MachineTest, OfADumpWithAParentOnlyWhatHasChangedIsWritten) {
  machine_.gpus[0].zero = 0.5;
  machine_.gpus[0].changed = 0.25;
  EXPECT_TRUE(machine_.has_parent());
  EXPECT_EQ(machine_.nonzero_bytes(), 4 * kGiB);
  EXPECT_EQ(machine_.changed_bytes(), kGiB);
  const Forecast dump = forecast(machine_, Direction::Dump, 0);
  EXPECT_EQ(dump.slowest, Part::Disk);
  EXPECT_NEAR(dump.seconds, seconds_at(kGiB, 20e9), 1e-9);
  EXPECT_NEAR(forecast(machine_, Direction::Restore, 0).seconds, seconds_at(4 * kGiB, 24e9), 1e-9);
  EXPECT_NEAR(forecast(machine_.without_parent(), Direction::Dump, 0).seconds, seconds_at(4 * kGiB, 20e9),
              1e-9);
  machine_.gpus[0].changed = 0;
  const Forecast nothing = forecast(machine_, Direction::Dump, 0);
  EXPECT_EQ(nothing.slowest, Part::Checksum);
  EXPECT_NEAR(nothing.seconds, seconds_at(kGiB, 40e9), 1e-9);
  EXPECT_FALSE(machine_.without_parent().has_parent());
}

TEST_F(MachineTest, FewCpusHashForAllGpus) {
  machine_.cpus = 1;
  const Forecast dump = forecast(machine_, Direction::Dump, 0);
  EXPECT_EQ(dump.slowest, Part::Checksum);
  EXPECT_NEAR(dump.seconds, seconds_at(8 * kGiB, 10e9), 1e-9);
}

TEST_F(MachineTest, ALaneHasWorkersWhereCpusAreToSpare) {
  EXPECT_EQ(workers_of_lane(96, 8), 4U);
  EXPECT_EQ(workers_of_lane(24, 8), 1U);
  EXPECT_EQ(workers_of_lane(16, 8), 0U);
  EXPECT_EQ(workers_of_lane(96, 0), 0U);
}

TEST_F(MachineTest, GroupsAreGpusOfOneMachine) {
  machine_.gpus.push_back({1, 3 * kGiB, 0, 1e9, 0, 1});
  EXPECT_EQ(machine_.gpu_count(), 9U);
  EXPECT_EQ(machine_.bytes(), 11 * kGiB);
  const Forecast dump = forecast(machine_, Direction::Dump, 0);
  EXPECT_EQ(dump.slowest, Part::Copy);
  EXPECT_NEAR(dump.seconds, seconds_at(3 * kGiB, 1e9), 1e-9);
}

}  // namespace
}  // namespace sluice::cli
