// SPDX-License-Identifier: MIT
// A stage that is made when its first chunk comes.
#include "pipeline/late_stage.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace sluice {
namespace {

// What a stage was asked.
struct Asked {
  int made = 0;
  int submitted = 0;
  int advanced = 0;
  int abandoned = 0;
  int finished = 0;
};

class Recorder final : public Stage {
 public:
  explicit Recorder(Asked& asked) : asked_(asked) {}
  const char* name() const override { return "copy"; }
  Result<Submit> submit(Slot& /*slot*/) override {
    return ++asked_.submitted == 2 ? Submit::Busy : Submit::Started;
  }
  Result<Progress> advance(Slot& /*slot*/, Op& /*op*/, std::int32_t result) override {
    ++asked_.advanced;
    if (result < 0) return Error{-result, "advance"};
    return Progress::Done;
  }
  void abandon() override { ++asked_.abandoned; }
  Result<void> finish() override {
    ++asked_.finished;
    return Error{EIO, "finish"};
  }

 private:
  Asked& asked_;
};

class LateStageTest : public ::testing::Test {
 protected:
  Asked asked_;
  int error_ = 0;  // of making
  LateStage stage_{"copy", [this]() -> Result<std::unique_ptr<Stage>> {
                     ++asked_.made;
                     if (error_ != 0) return Error{error_, "make"};
                     return std::unique_ptr<Stage>(std::make_unique<Recorder>(asked_));
                   }};
  Slot slot_;
};

TEST_F(LateStageTest, IsNotMadeBeforeItsFirstChunk) {
  EXPECT_STREQ(stage_.name(), "copy");
  stage_.abandon();
  EXPECT_TRUE(stage_.finish());
  EXPECT_EQ(asked_.made, 0);
}

TEST_F(LateStageTest, IsMadeOnceAndAskedEverything) {
  Result<Submit> first = stage_.submit(slot_);
  ASSERT_TRUE(first);
  EXPECT_EQ(*first, Submit::Started);
  Result<Submit> second = stage_.submit(slot_);
  ASSERT_TRUE(second);
  EXPECT_EQ(*second, Submit::Busy);
  EXPECT_TRUE(stage_.advance(slot_, slot_.op(), 0));
  EXPECT_EQ(stage_.advance(slot_, slot_.op(), -ETIME).error().err, ETIME);
  stage_.abandon();
  EXPECT_EQ(stage_.finish().error().err, EIO);
  EXPECT_EQ(asked_.made, 1);
  EXPECT_EQ(asked_.submitted, 2);
  EXPECT_EQ(asked_.advanced, 2);
  EXPECT_EQ(asked_.abandoned, 1);
  EXPECT_EQ(asked_.finished, 1);
}

TEST_F(LateStageTest, FailsItsFirstChunkWhereItCannotBeMade) {
  error_ = ENOMEM;
  EXPECT_EQ(stage_.submit(slot_).error().err, ENOMEM);
  stage_.abandon();
}

}  // namespace
}  // namespace sluice
