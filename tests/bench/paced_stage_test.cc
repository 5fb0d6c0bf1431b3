// SPDX-License-Identifier: MIT
// A copy stage that keeps to a rate, in virtual time: when copies begin, and that nothing begins once the
// lane has failed.
#include "engine/paced_stage.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "sim/sim_reactor.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kRate = 1'000'000'000;              // a byte is a nanosecond
constexpr std::uint64_t kNeverNs = std::uint64_t{1} << 62;  // far later than any timeout: polls end by theirs

// Copies at once, and notes when.
class QuickCopy final : public Stage {
 public:
  QuickCopy(Reactor& reactor, std::vector<std::uint64_t>& began) : reactor_(reactor), began_(began) {}
  const char* name() const override { return "copy"; }
  Result<Submit> submit(Slot& slot) override {
    began_.push_back(reactor_.now_ns());
    reactor_.post(slot.op(), 0);
    return Submit::Started;
  }
  Result<Progress> advance(Slot& /*slot*/, Op& /*op*/, std::int32_t /*result*/) override {
    return Progress::Done;
  }

 private:
  Reactor& reactor_;
  std::vector<std::uint64_t>& began_;
};

class PacedStageTest : public ::testing::Test {
 protected:
  PacedStageTest() {
    for (std::uint32_t i = 0; i < slots_.size(); ++i) {
      slots_[i].index = i;
      for (Op& op : slots_[i].ops) op.slot = &slots_[i];
      slots_[i].chunk.length = 1000;
    }
    auto made =
        PacedStage::make(std::make_unique<QuickCopy>(reactor_, began_), kRate, slots_.size(), reactor_);
    EXPECT_TRUE(made.ok());
    stage_ = std::move(*made);
  }

  void submit_all() {
    for (Slot& slot : slots_) EXPECT_TRUE(stage_->submit(slot).ok());
  }
  void finish_all() {
    for (std::size_t done = 0; done < slots_.size();) {
      std::array<Completion, 1> completions;
      ASSERT_TRUE(reactor_.wait(completions).ok());
      Op& op = *completions[0].op;
      const auto progress = stage_->advance(*op.slot, op, completions[0].result);
      ASSERT_TRUE(progress.ok());
      if (*progress == Progress::Done) ++done;
    }
  }

  std::array<Slot, 3> slots_;
  sim::SimReactor reactor_{test::Rng(1), kNeverNs, {}};
  std::vector<std::uint64_t> began_;
  std::unique_ptr<Stage> stage_;
};

TEST_F(PacedStageTest, CopiesBeginAtTheRate) {
  submit_all();
  finish_all();
  EXPECT_EQ(began_, (std::vector<std::uint64_t>{0, 1000, 2000}));
}

TEST_F(PacedStageTest, OfAFailedLaneNothingMoreIsCopied) {
  submit_all();
  stage_->abandon();
  finish_all();
  EXPECT_EQ(began_.size(), 1U);
}

TEST_F(PacedStageTest, ATimerThatFailsIsToldAsSuch) {
  submit_all();
  const auto failed = stage_->advance(slots_[1], slots_[1].op(), -ECANCELED);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().err, ECANCELED);
  stage_->abandon();
  std::array<Completion, 3> completions;
  while (reactor_.in_flight() > 0) ASSERT_TRUE(reactor_.wait(completions).ok());
}

}  // namespace
}  // namespace sluice::bench
