// SPDX-License-Identifier: MIT
// A stage that only takes time, in virtual time.
#include "engine/timed_stage.h"

#include <gtest/gtest.h>

#include <array>

#include "sim/sim_reactor.h"

namespace sluice::bench {
namespace {

constexpr double kRate = 1e9;                               // a byte is a nanosecond
constexpr std::uint64_t kNeverNs = std::uint64_t{1} << 62;  // far later than any timeout: polls end by theirs

class TimedStageTest : public ::testing::Test {
 protected:
  TimedStageTest() {
    for (std::uint32_t i = 0; i < slots_.size(); ++i) {
      slots_[i].index = i;
      for (Op& op : slots_[i].ops) op.slot = &slots_[i];
    }
  }

  std::unique_ptr<TimedStage> make(double rate) {
    auto stage = TimedStage::make("timed", rate, reactor_);
    EXPECT_TRUE(stage.ok());
    return std::move(*stage);
  }

  void submit(TimedStage& stage, std::uint32_t slot, std::uint64_t bytes) {
    slots_[slot].chunk.length = bytes;
    const auto submitted = stage.submit(slots_[slot]);
    ASSERT_TRUE(submitted.ok());
    EXPECT_EQ(*submitted, Submit::Started);
  }

  // Waits for everything in flight; slots in the order of their ends.
  std::vector<std::uint32_t> finish(TimedStage& stage, std::size_t count) {
    std::vector<std::uint32_t> order;
    while (order.size() < count) {
      std::array<Completion, 1> done;
      const auto got = reactor_.wait(done);
      EXPECT_TRUE(got.ok());
      const auto progress = stage.advance(*done[0].op->slot, *done[0].op, done[0].result);
      EXPECT_TRUE(progress.ok() && *progress == Progress::Done);
      order.push_back(done[0].op->slot->index);
    }
    return order;
  }

  std::array<Slot, 4> slots_;
  sim::SimReactor reactor_{test::Rng(1), kNeverNs, {}};
};

TEST_F(TimedStageTest, ServesChunksOneAfterTheOther) {
  const auto stage = make(kRate);
  for (std::uint32_t slot = 0; slot < 4; ++slot) submit(*stage, slot, 1000);
  EXPECT_EQ(finish(*stage, 4), (std::vector<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(reactor_.now_ns(), 4000U);
  EXPECT_EQ(stage->served_bytes(), 4000U);
}

TEST_F(TimedStageTest, SavesNoTimeWhileItIsIdle) {
  const auto stage = make(kRate);
  submit(*stage, 0, 1000);
  finish(*stage, 1);
  reactor_.after(slots_[1].op(), 5000, 0);
  std::array<Completion, 1> done;
  ASSERT_TRUE(reactor_.wait(done).ok());
  submit(*stage, 2, 1000);
  finish(*stage, 1);
  EXPECT_EQ(reactor_.now_ns(), 7000U);
}

TEST_F(TimedStageTest, StagesOfOneDeviceWaitForEachOther) {
  const auto device = std::make_shared<TimedDevice>(kRate);
  const auto one = TimedStage::make("one", device, reactor_);
  const auto other = TimedStage::make("other", device, reactor_);
  ASSERT_TRUE(one.ok() && other.ok());
  submit(**one, 0, 1000);
  submit(**other, 1, 500);
  submit(**one, 2, 1000);
  EXPECT_EQ(finish(**one, 3), (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_EQ(reactor_.now_ns(), 2500U);
  EXPECT_EQ((*one)->served_bytes(), 2000U);
  EXPECT_EQ((*other)->served_bytes(), 500U);
}

TEST_F(TimedStageTest, TakesNoTimeWithoutARate) {
  const auto stage = make(0);
  submit(*stage, 0, 1 << 20);
  finish(*stage, 1);
  EXPECT_EQ(reactor_.now_ns(), 0U);
  EXPECT_EQ(stage->served_bytes(), std::uint64_t{1} << 20);
}

TEST_F(TimedStageTest, PassesOnThatItsTimerFailed) {
  const auto stage = make(kRate);
  EXPECT_TRUE(stage->advance(slots_[0], slots_[0].op(), -ETIME).ok());
  const auto failed = stage->advance(slots_[0], slots_[0].op(), -ECANCELED);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().err, ECANCELED);
}

}  // namespace
}  // namespace sluice::bench
