// SPDX-License-Identifier: MIT
// The loop with stages that can be told what to do: order, refusal, failure, draining, statistics.
#include "pipeline/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "pipeline/reactor/thread_reactor.h"

namespace sluice {
namespace {

constexpr std::uint64_t kChunk = 16;

// Records what passes; `answer` may refuse, `outcome` may fail a completion.
class FakeStage final : public Stage {
 public:
  FakeStage(const char* name, Reactor& reactor) : name_(name), reactor_(reactor) {}

  const char* name() const override { return name_; }
  Result<Submit> submit(Slot& slot) override {
    if (refuses && refuses(slot)) return Submit::Busy;
    if (submit_error && submit_error(slot)) return make_error(ENOSPC, std::string(name_) + " submit");
    submitted.push_back(slot.chunk.index);
    ++running;
    most_running = std::max(most_running, running);
    reactor_.post(slot.op(), result ? result(slot) : 0);
    return Submit::Started;
  }
  Result<Progress> advance(Slot& slot, Op&, std::int32_t res) override {
    --running;
    if (res < 0) return make_error(-res, name_);
    done.push_back(slot.chunk.index);
    return Progress::Done;
  }
  Result<void> finish() override {
    ++finished;
    if (finish_errno != 0) return make_error(finish_errno, name_);
    return {};
  }

  std::function<bool(const Slot&)> refuses;
  std::function<bool(const Slot&)> submit_error;
  std::function<std::int32_t(const Slot&)> result;
  int finish_errno = 0;
  std::vector<std::uint64_t> submitted;
  std::vector<std::uint64_t> done;
  int running = 0;
  int most_running = 0;
  int finished = 0;

 private:
  const char* name_;
  Reactor& reactor_;
};

struct PipelineTest : public ::testing::Test {
  void prepare(std::uint64_t chunks, std::size_t depth) {
    layout = std::make_unique<ImageLayout>(
        std::move(ImageLayout::make(std::array{chunks * kChunk - kHeaderBytes}, kChunk)).value());
    buffer.resize(depth * kChunk);
    slots.resize(depth);
    for (std::size_t i = 0; i < depth; ++i) slots[i].buffer = std::span(buffer).subspan(i * kChunk, kChunk);
  }

  Result<PipelineStats> run(const std::function<bool()>& cancelled = nullptr) {
    const std::array<Stage*, 2> route{&first, &second};
    Pipeline pipeline(*layout, slots, route, *reactor);
    auto stats = pipeline.run(
        [&](std::uint64_t done, std::uint64_t total) {
          pipeline.check_invariants();
          EXPECT_EQ(total, layout->chunk_count());
          reported.push_back(done);
        },
        cancelled);
    EXPECT_EQ(reactor->in_flight(), 0U);
    EXPECT_EQ(first.running + second.running, 0);
    return stats;
  }

  std::unique_ptr<ImageLayout> layout;
  std::vector<std::byte> buffer;
  std::vector<Slot> slots;
  std::unique_ptr<ThreadReactor> reactor = std::move(ThreadReactor::make(1, 64)).value();
  FakeStage first{"first", *reactor};
  FakeStage second{"second", *reactor};
  std::vector<std::uint64_t> reported;
};

TEST_F(PipelineTest, EveryChunkPassesEveryStageOnce) {
  prepare(10, 3);
  const auto stats = run();
  ASSERT_TRUE(stats.ok());
  const std::vector<std::uint64_t> all{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(first.submitted, all);
  std::sort(second.done.begin(), second.done.end());
  EXPECT_EQ(second.done, all);
  EXPECT_EQ(first.finished + second.finished, 2);
  EXPECT_EQ(stats->chunks, 10U);
  EXPECT_EQ(stats->bytes, layout->file_bytes());
  EXPECT_EQ(stats->stages, 2U);
  EXPECT_STREQ(stats->stage[1].name, "second");
  EXPECT_LE(first.most_running, 3) << "never more than there are slots";
  EXPECT_EQ(reported.back(), 10U);
}

TEST_F(PipelineTest, ARefusedSlotIsOfferedAgainInChunkOrder) {
  prepare(20, 4);
  std::uint64_t turn = 0;
  second.refuses = [&](const Slot& slot) { return slot.chunk.index != turn || second.running > 0; };
  second.result = [&](const Slot&) {
    ++turn;
    return 0;
  };
  ASSERT_TRUE(run().ok());
  EXPECT_TRUE(std::is_sorted(second.done.begin(), second.done.end()));
  EXPECT_EQ(second.done.size(), 20U);
}

// Its memory stays in the processor's caches that way.
TEST_F(PipelineTest, AFirstStageThatTakesOneAtATimeUsesFewSlots) {
  prepare(20, 8);
  std::set<const Slot*> used;
  first.refuses = [&](const Slot& slot) {
    used.insert(&slot);
    return first.running > 0;
  };
  ASSERT_TRUE(run().ok());
  EXPECT_EQ(first.most_running, 1);
  EXPECT_EQ(second.done.size(), 20U);
  EXPECT_LE(used.size(), 3U) << "one in each stage, one that waits";
}

TEST_F(PipelineTest, TheFirstErrorStopsAdmissionAndWins) {
  prepare(50, 2);
  first.result = [](const Slot& slot) {
    return slot.chunk.index == 5 ? -EIO : slot.chunk.index > 5 ? -EPERM : 0;
  };
  const auto stats = run();
  ASSERT_FALSE(stats.ok());
  EXPECT_EQ(stats.error().err, EIO);
  EXPECT_LE(first.submitted.size(), 7U);
  EXPECT_EQ(first.finished + second.finished, 0) << "nothing is finished after a failure";
}

TEST_F(PipelineTest, ARefusalWithAnErrorFailsTheRun) {
  prepare(5, 2);
  second.submit_error = [](const Slot& slot) { return slot.chunk.index == 1; };
  EXPECT_EQ(run().error().what, "second submit: No space left on device");
}

TEST_F(PipelineTest, AStageWithoutMemoryFailsTheRunWhenAllHasComeToRest) {
  prepare(10, 4);
  second.submit_error = [this](const Slot&) -> bool {
    if (second.running > 0) throw std::bad_alloc();
    return false;
  };
  const auto stats = run();
  ASSERT_FALSE(stats.ok());
  EXPECT_EQ(stats.error().err, ENOMEM);
}

TEST_F(PipelineTest, AFailedFinishIsAFailedRun) {
  prepare(3, 2);
  first.finish_errno = EDQUOT;
  EXPECT_EQ(run().error().err, EDQUOT);
  EXPECT_EQ(second.finished, 0);
}

TEST_F(PipelineTest, CancellingDrainsAndSaysSo) {
  prepare(100, 4);
  int asked = 0;
  EXPECT_EQ(run([&] { return ++asked > 5; }).error().err, ECANCELED);
  EXPECT_LT(second.done.size(), 100U);
}

}  // namespace
}  // namespace sluice
