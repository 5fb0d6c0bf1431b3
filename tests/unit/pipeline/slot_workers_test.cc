// SPDX-License-Identifier: MIT
// A lane's workers: every job is done once, its result comes back with its slot, and nothing is left running.
#include "pipeline/slot_workers.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>
#include <latch>
#include <new>
#include <set>
#include <thread>

#include "pipeline/reactor/thread_reactor.h"
#include "support/failing_allocation.h"
#include "support/process_state.h"
#include "support/refuse_system_call.h"

namespace sluice {
namespace {

constexpr std::uint32_t kSlots = 8;

struct Fixture : public ::testing::Test {
  Fixture() : slots(kSlots), reactor(std::move(ThreadReactor::make(1, kSlots)).value()) {
    for (std::uint32_t i = 0; i < kSlots; ++i) {
      slots[i].index = i;
      for (Op& op : slots[i].ops) op.slot = &slots[i];
    }
  }

  // Waits for `count` completions and takes their results, by slot.
  std::vector<std::pair<std::uint32_t, Result<void>>> take(SlotWorkers& workers, std::size_t count) {
    std::vector<std::pair<std::uint32_t, Result<void>>> results;
    std::array<Completion, kSlots> completions;
    while (results.size() < count) {
      const auto got = reactor->wait(completions);
      EXPECT_TRUE(got.ok());
      for (std::size_t i = 0; i < *got; ++i) {
        const Slot& slot = *completions[i].op->slot;
        results.emplace_back(slot.index, workers.take(slot, completions[i].result));
      }
    }
    return results;
  }

  std::vector<Slot> slots;
  std::unique_ptr<ThreadReactor> reactor;
};

// Fails for odd slots, with the slot's number.
struct OddFails final : public SlotWork {
  Result<void> work(Slot& slot) override {
    ++done;
    if (slot.index % 2 == 0) return {};
    return Error{EBADMSG, "slot " + std::to_string(slot.index)};
  }
  std::atomic<unsigned> done{0};
};

TEST_F(Fixture, EveryResultComesBackWithItsSlotHoweverOften) {
  auto workers = std::move(SlotWorkers::start("worker", 3, kSlots)).value();
  OddFails work;
  for (unsigned round = 1; round <= 50; ++round) {
    for (Slot& slot : slots) workers->run(slot, work, *reactor);
    std::set<std::uint32_t> seen;
    for (const auto& [slot, result] : take(*workers, kSlots)) {
      EXPECT_TRUE(seen.insert(slot).second);
      EXPECT_EQ(result.ok() ? "" : result.error().what, slot % 2 == 0 ? "" : "slot " + std::to_string(slot));
    }
    EXPECT_EQ(work.done, round * kSlots);
  }
}

TEST_F(Fixture, WithoutDescriptorsOrThreadsThereAreNone) {
  std::thread([] {
    ASSERT_TRUE(test::refuse_threads(EAGAIN));
    EXPECT_EQ(SlotWorkers::start("worker", 2, kSlots).error().err, EAGAIN);
    ASSERT_TRUE(test::refuse_system_call(SYS_eventfd2, EMFILE));
    EXPECT_EQ(SlotWorkers::start("worker", 2, kSlots).error().err, EMFILE);
  }).join();
}

TEST_F(Fixture, WhereverMemoryRunsOutThereAreNoneAndNobodyWaitsForThem) {
  const std::size_t threads = test::own_threads();
  int failures = 0;
  for (bool all_tried = false; !all_tried; ++failures) {
    SCOPED_TRACE(failures);
    bool started = false;
    test::failing_allocation().arm(failures);
    try {
      const auto workers = SlotWorkers::start("worker", 3, kSlots);
      all_tried = test::failing_allocation().disarm();
      started = workers.ok();
    } catch (const std::bad_alloc&) {
    }
    EXPECT_EQ(started, all_tried);
    ASSERT_TRUE(test::own_threads_come_down_to(threads));
  }
  EXPECT_GT(failures, 3) << "at least one for each thread";
}

TEST_F(Fixture, AWaitThatFailedIsNoResult) {
  auto workers = std::move(SlotWorkers::start("worker", 1, kSlots)).value();
  EXPECT_EQ(workers->take(slots[0], -ECANCELED).error().err, ECANCELED);
  EXPECT_EQ(workers->take(slots[0], 0).error().err, EAGAIN) << "no job of this slot has ended";
}

// As many jobs at once as there are threads: each waits for the others.
struct AllTogether final : public SlotWork {
  explicit AllTogether(unsigned threads) : together(threads) {}
  Result<void> work(Slot&) override {
    together.arrive_and_wait();
    return {};
  }
  std::latch together;
};

TEST_F(Fixture, JobsRunAtTheSameTime) {
  auto workers = std::move(SlotWorkers::start("worker", 3, kSlots)).value();
  AllTogether work(3);
  for (std::size_t i = 0; i < 3; ++i) workers->run(slots[i], work, *reactor);
  EXPECT_EQ(take(*workers, 3).size(), 3U);
}

struct OutOfMemory final : public SlotWork {
  Result<void> work(Slot&) override { throw std::bad_alloc(); }
};

TEST_F(Fixture, AnExceptionIsAnError) {
  auto workers = std::move(SlotWorkers::start("worker", 1, kSlots)).value();
  OutOfMemory work;
  workers->run(slots[5], work, *reactor);
  const auto results = take(*workers, 1);
  EXPECT_EQ(results[0].first, 5U);
  EXPECT_EQ(results[0].second.error().err, ENOMEM);
}

TEST_F(Fixture, TheEndDoesWhatIsQueuedAndLeavesNoThread) {
  const std::size_t threads = test::own_threads();
  OddFails work;
  {
    auto workers = std::move(SlotWorkers::start("worker", 2, kSlots)).value();
    for (Slot& slot : slots) workers->run(slot, work, *reactor);
    // The lane's ring has broken, say: nobody takes the results, but the reactor comes to rest before it
    // goes.
    std::array<Completion, kSlots> completions;
    while (reactor->in_flight() > 0) ASSERT_TRUE(reactor->wait(completions).ok());
  }
  EXPECT_EQ(work.done, kSlots);
  EXPECT_TRUE(test::own_threads_come_down_to(threads));
}

}  // namespace
}  // namespace sluice
