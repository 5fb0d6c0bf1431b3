// SPDX-License-Identifier: MIT
// Jobs that never end, and engines that fail: what the copy stage then says, keeps and gives back. A lost job
// may write at any time, so these tests let it, after the stage is gone.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "base/units.h"
#include "control.h"
#include "copy_lane.h"
#include "ioctl_fault.h"
#include "support/failing_allocation.h"
#include "support/forwarding_reactor.h"
#include "support/rng.h"
#include "target.h"

namespace sluice::drm {
namespace {

using namespace std::chrono_literals;
using test::Rng;

class LostFenceTest : public testing::TestWithParam<ReactorKind> {
 protected:
  void SetUp() override {
    if (!on_virtual_machine()) GTEST_SKIP() << "needs a virtual machine: run it by vamdgpu-run";
    if (const std::string why = test::unavailable(GetParam()); !why.empty()) GTEST_SKIP() << why;
    control = vamdgpu::Control::open(std::getenv("VAMDGPU_DIR"));
    ASSERT_NE(control, nullptr);
    target.emplace();
    auto opened = Device::open(kFirstMinor);
    ASSERT_TRUE(opened.ok()) << opened.error().what;
    device.emplace(std::move(opened).value());
    Rng rng(23);
    for (const std::uint64_t pages : {1, 40, 3, 64, 5}) {
      bos.push_back(target->create(pages * 4096));
      rng.fill(bos.back().cpu());
    }
    options.chunk_bytes = 64 * kKiB;
    options.slots = 3;
    options.reactor = GetParam();
    options.holes = false;
  }
  void TearDown() override {
    if (control == nullptr) return;
    control->clear_faults();
    control->release_hung_fences();
  }

  // The k-th job from now, counted from 1.
  std::uint64_t job(std::uint64_t k) const { return control->fences_made(0) + k; }

  std::unique_ptr<vamdgpu::Control> control;
  std::optional<TargetFile> target;
  std::optional<Device> device;
  std::vector<TargetBo> bos;
  CopyLaneOptions options;
};

INSTANTIATE_TEST_SUITE_P(Reactor, LostFenceTest, testing::Values(ReactorKind::Threads, ReactorKind::Uring),
                         [](const auto& param) {
                           return param.param == ReactorKind::Threads ? "Threads" : "Uring";
                         });

TEST_P(LostFenceTest, IsATimeoutThatKeepsWhatTheJobMayReach) {
  options.copy.fence_timeout = 50ms;
  for (const Direction direction : {Direction::Dump, Direction::Restore}) {
    for (const std::uint64_t victim : {1U, 4U}) {
      SCOPED_TRACE("job " + std::to_string(victim));
      const vamdgpu::Counts before = control->counts();
      Bytes image = serial_image(bos);
      control->hang_fence(0, job(victim));
      const CopyOutcome outcome = run_copy(*device, direction, *target, bos, image, options);
      ASSERT_FALSE(outcome.result.ok());
      EXPECT_EQ(outcome.result.error().err, ETIMEDOUT);
      const std::string& what = outcome.result.error().what;
      EXPECT_NE(what.find("chunk "), std::string::npos) << what;
      EXPECT_NE(what.find("BO "), std::string::npos) << what;
      EXPECT_NE(what.find(kFirstNode), std::string::npos) << what;
      EXPECT_NE(what.find("50 ms"), std::string::npos) << what;
      EXPECT_NE(what.find("[SL-C05]"), std::string::npos) << what;
      EXPECT_TRUE(outcome.abandoned);

      const vamdgpu::Counts after = control->counts();
      EXPECT_GE(after.jobs, 1U) << "it still runs";
      EXPECT_GT(after.gem_handles, before.gem_handles) << "staging, IBs and the BOs of the job are kept";
      EXPECT_GT(after.mappings, before.mappings);
      control->release_hung_fences();
    }
  }
}

// Everything hangs: every job in flight runs into its own timeout, and the drain comes to its end.
TEST_P(LostFenceTest, ManyAtOnceDrain) {
  options.copy.fence_timeout = 50ms;
  control->hang_fence(0, 0);
  Bytes image;
  const CopyOutcome outcome = run_copy(*device, Direction::Dump, *target, bos, image, options);
  ASSERT_FALSE(outcome.result.ok());
  EXPECT_EQ(outcome.result.error().err, ETIMEDOUT);
  EXPECT_TRUE(outcome.abandoned);
}

// Its clock goes on by what a poll may take, at once.
class HurriedReactor final : public test::ForwardingReactor {
 public:
  explicit HurriedReactor(std::unique_ptr<Reactor> inner)
      : ForwardingReactor(*inner), inner_(std::move(inner)), now_ns_(inner_->now_ns()) {}
  void poll_readable(Op& op, int /*fd*/, std::chrono::nanoseconds timeout) override {
    now_ns_ += static_cast<std::uint64_t>(timeout.count());
    post(op, -ETIME);
  }
  std::uint64_t now_ns() override { return now_ns_; }

 private:
  std::unique_ptr<Reactor> inner_;
  std::uint64_t now_ns_;
};

TEST_P(LostFenceTest, TimesOutOnTheReactorsClock) {
  options.copy.fence_timeout = 1h;  // longer than any test may take
  options.wrap = [](std::unique_ptr<Reactor> inner) {
    return std::make_unique<HurriedReactor>(std::move(inner));
  };
  control->hang_fence(0, 0);
  Bytes image;
  const CopyOutcome outcome = run_copy(*device, Direction::Dump, *target, bos, image, options);
  ASSERT_FALSE(outcome.result.ok());
  EXPECT_EQ(outcome.result.error().err, ETIMEDOUT) << outcome.result.error().what;
}

// One entity of four, at whose jobs the others copy on: it is not given so many that the kernel would block
// the lane, where no time is ever over.
TEST_P(LostFenceTest, AnEntityThatHangsHoldsUpNoSubmission) {
  bos.push_back(target->create(40 * kMiB));
  options.slots = 64;
  options.copy.fence_timeout = 2s;
  control->hang_fence(0, job(1));
  Bytes image;
  const CopyOutcome outcome = run_copy(*device, Direction::Dump, *target, bos, image, options);
  ASSERT_FALSE(outcome.result.ok());
  EXPECT_EQ(outcome.result.error().err, ETIMEDOUT) << outcome.result.error().what;
  EXPECT_TRUE(outcome.abandoned);
  EXPECT_LE(control->counts().jobs, options.slots / 4) << "what hangs is its share at the start";
}

// Who stops the lane does not wait for the fence's time.
TEST_P(LostFenceTest, OfAStoppedLaneIsGivenUpSoon) {
  const std::atomic<bool> stopped = true;
  options.copy.stopped = &stopped;
  options.copy.fence_timeout = 24h;  // longer than any test may take
  control->hang_fence(0, job(2));
  Bytes image;
  const CopyOutcome outcome = run_copy(*device, Direction::Dump, *target, bos, image, options);
  ASSERT_FALSE(outcome.result.ok());
  EXPECT_EQ(outcome.result.error().err, ECANCELED) << outcome.result.error().what;
  EXPECT_TRUE(outcome.abandoned);
}

// A job that was launched when the lane was stopped already is as good as any other.
TEST_P(LostFenceTest, IsNotWhatAJobOfAStoppedLaneHas) {
  const std::atomic<bool> stopped = true;
  options.copy.stopped = &stopped;
  control->set_engine_rate(0, 32 * kMiB);  // 2 ms a chunk
  Bytes image;
  const CopyOutcome outcome = run_copy(*device, Direction::Dump, *target, bos, image, options);
  control->set_engine_rate(0, 0);
  EXPECT_TRUE(outcome.result.ok()) << outcome.result.error().what;
  EXPECT_FALSE(outcome.abandoned);
}

// A job that can neither be polled nor waited for to its end: the error of the export would not say it all.
TEST_P(LostFenceTest, WithoutASyncFileIsATimeoutToo) {
  options.copy.fence_timeout = 50ms;
  constexpr std::uint32_t kFenceToHandle = 0x54;
  control->inject({vamdgpu::On::Render, kFenceToHandle, -1, EMFILE, 1, 1, false});
  control->hang_fence(0, job(2));
  Bytes image;
  const CopyOutcome outcome = run_copy(*device, Direction::Dump, *target, bos, image, options);
  ASSERT_FALSE(outcome.result.ok());
  EXPECT_EQ(outcome.result.error().err, ETIMEDOUT);
  EXPECT_TRUE(outcome.abandoned);
}

// The same without memory for the words of it: whichever allocation of the stage fails, from there on.
TEST_P(LostFenceTest, WithoutMemoryForAnErrorKeepsWhatTheJobMayReachToo) {
  options.copy.fence_timeout = 50ms;
  for (int nth = 0;; ++nth) {
    SCOPED_TRACE("allocation " + std::to_string(nth));
    control->hang_fence(0, job(2));
    int fences = 0;
    const IoctlPlan plan(target->fd(), [&](char, unsigned number, void*) {
      if (number != kFenceToHandle || fences++ != 1) return 0;
      test::failing_allocation().arm(nth);
      return EMFILE;
    });
    Bytes image;
    try {
      const CopyOutcome outcome = run_copy(*device, Direction::Dump, *target, bos, image, options);
      ASSERT_FALSE(test::failing_allocation().disarm());
      ASSERT_FALSE(outcome.result.ok());
      EXPECT_EQ(outcome.result.error().err, ENOMEM);
      ASSERT_TRUE(outcome.abandoned);
    } catch (const std::bad_alloc&) {
      EXPECT_GT(nth, 4) << "the stage allocates more than that";
      return;  // it was the pipeline's: the stage had all it needed
    }
    control->release_hung_fences();
  }
}

TEST_P(LostFenceTest, AFailedEngineIsAnErrorAndLeavesNothing) {
  for (const int err : {ECANCELED, ETIME}) {
    const vamdgpu::Counts before = control->counts();
    control->fail_fence(0, job(3), err);
    Bytes image;
    const CopyOutcome outcome = run_copy(*device, Direction::Dump, *target, bos, image, options);
    ASSERT_FALSE(outcome.result.ok());
    // The engine's own error, or, if the next submission was quicker, that its context is lost.
    const int reported = outcome.result.error().err;
    EXPECT_TRUE(reported == err || reported == ECANCELED) << outcome.result.error().what;
    EXPECT_NE(outcome.result.error().what.find("chunk "), std::string::npos) << outcome.result.error().what;
    EXPECT_FALSE(outcome.abandoned);
    const vamdgpu::Counts after = control->counts();
    EXPECT_EQ(after.gem_handles, before.gem_handles);
    EXPECT_EQ(after.mappings, before.mappings);
    EXPECT_EQ(after.contexts, before.contexts);
  }
}

// The device is as good as new for the next lane.
TEST_P(LostFenceTest, TheNextLaneStartsAfresh) {
  control->fail_fence(0, job(2), ECANCELED);
  Bytes image;
  ASSERT_FALSE(run_copy(*device, Direction::Dump, *target, bos, image, options).result.ok());
  const CopyOutcome again = run_copy(*device, Direction::Dump, *target, bos, image, options);
  ASSERT_TRUE(again.result.ok()) << again.result.error().what;
  EXPECT_TRUE(image == serial_image(bos));
}

}  // namespace
}  // namespace sluice::drm
