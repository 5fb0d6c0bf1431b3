// SPDX-License-Identifier: MIT
// Everything the engine asks of the system fails once: the n-th operation of the reactor, or the n-th system
// call, for n = 0, 1, 2, ... until a run reaches no fault any more. Each run ends, either right to the last
// byte or with the error that was injected and an object's name; it leaves no file, descriptor or thread.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/units.h"
#include "fault/syscall_faults.h"
#include "pipeline/lane_thread.h"
#include "support/engine_fixture.h"
#include "support/rng.h"

namespace sluice {
namespace {

using namespace test;  // the fixture, and what it is made of

constexpr std::uint64_t kChunk = 256 * kKiB;

// Three chunks and a tail, with zero units in the middle: several writes of one chunk.
BoList some_bos() {
  BoList bos{Bytes(kChunk), Bytes(2 * kChunk - 4096), Bytes(8192)};
  Rng rng(11);
  for (Bytes& bo : bos) rng.fill(bo);
  std::fill_n(bos[0].begin() + 64 * kKiB, 70 * kKiB, std::byte{0});
  std::fill_n(bos[1].begin() + 60 * kKiB, 140 * kKiB, std::byte{0});
  return bos;
}

class EngineFault : public EngineTest,
                    public ::testing::WithParamInterface<std::tuple<ReactorKind, IoMode, unsigned>> {
 protected:
  EngineFault() : EngineTest(std::get<0>(GetParam()), some_bos()) {}

  void SetUp() override {
    EngineTest::SetUp();
    if (IsSkipped()) return;
    expect_ok(run(Direction::Dump));  // whatever is loaded lazily is
    sums_wanted_ = sums_;
    fds_ = open_fds();
    threads_ = own_threads();
  }

  // One dump or restore. `over`: the file is there already.
  Result<PipelineStats> run(Direction direction, Lane& lane, bool over = false) {
    const LaneRun run{lane, &sums_, {std::get<1>(GetParam()), true, true, over}, std::get<2>(GetParam())};
    if (direction == Direction::Dump) {
      sums_ = unit_tables(layout_, kChunk).front();
      return dump_to(dir_.fd(), kPagesName, bos_, run);
    }
    sums_ = sums_wanted_;
    restored_ = garbage();
    return restore_from(dir_.fd(), kPagesName, restored_, run);
  }
  Result<PipelineStats> run(Direction direction) {
    return run(direction, *lane_that_fails(layout_, Fault::Error, kNever).lane);
  }

  void expect_nothing_left() const {
    EXPECT_EQ(open_fds(), fds_);
    EXPECT_TRUE(own_threads_come_down_to(threads_));
  }
  void expect_all_is_right(Direction direction) const {
    if (direction == Direction::Dump) {
      EXPECT_EQ(dir_.names(), std::vector<std::string>{kPagesName});
      EXPECT_EQ(dir_.read(kPagesName), expected_);
    } else {
      EXPECT_EQ(restored_, bos_);
    }
  }

  // `err` 0: the fault must not matter.
  void fail_each_operation(Direction direction, Fault fault, int injected, int err) {
    const std::uint64_t operations = fail_each([&](std::uint64_t nth) {
      if (direction == Direction::Dump) (void)::unlinkat(dir_.fd(), kPagesName, 0);
      bool fired = false;
      const auto stats = [&] {
        const FaultyLane faulty = lane_that_fails(layout_, fault, nth, injected);
        auto result = run(direction, *faulty.lane);
        fired = faulty.fired();
        return result;
      }();
      expect_nothing_left();
      if (err == 0 || !fired) {
        expect_ok(stats);
        expect_all_is_right(direction);
      } else {
        expect_error(stats, err, fault == Fault::BrokenRing ? "" : kPagesName);
        if (direction == Direction::Dump) {
          EXPECT_TRUE(dir_.names().empty()) << dir_.names()[0];
        }
      }
      return fired;
    });
    EXPECT_GT(operations, 4U) << "there are more operations than that";
  }

  // Some the engine can do without; then all is right all the same. `old`: of an earlier dump, to be written
  // over; empty: there is none.
  void fail_each_system_call(Direction direction, const Bytes& old,
                             const std::vector<std::string>& expected_fatal) {
    std::set<std::string> fatal;
    (void)fail_each([&](std::uint64_t nth) {
      if (direction == Direction::Dump) (void)::unlinkat(dir_.fd(), kPagesName, 0);
      if (!old.empty()) {
        dir_.write(kPagesName, old);
        EXPECT_EQ(::fchmodat(dir_.fd(), kPagesName, 0600, 0), 0);
      }
      const FaultyLane lane = lane_that_fails(layout_, Fault::Error, kNever);
      std::string fired;
      const auto stats = [&] {
        const SyscallFault fault(nth, EIO);
        auto result = run(direction, *lane.lane, !old.empty());
        fired = fault.fired() != nullptr ? fault.fired() : "";
        return result;
      }();
      SCOPED_TRACE(fired);
      EXPECT_EQ(open_fds(), fds_ + 1) << "the reactor's own, a ring or an eventfd, and no other";
      if (stats.ok()) {
        expect_all_is_right(direction);
      } else {
        expect_error(stats, EIO, kPagesName);
        // Nothing, or the old file as it was: never one with bytes of both.
        if (direction == Direction::Dump && !dir_.names().empty()) {
          EXPECT_EQ(dir_.names(), std::vector<std::string>{kPagesName});
          EXPECT_EQ(dir_.read(kPagesName), old);
        }
        fatal.insert(fired);
      }
      return !fired.empty();
    });
    for (const std::string& call : expected_fatal)
      EXPECT_TRUE(fatal.contains(call)) << call << " failed and nobody said so";
  }

  const Bytes expected_ = serial_file(bos_);
  const ImageLayout layout_ = std::move(ImageLayout::make(sizes_of(bos_), kChunk)).value();
  TempDir dir_;
  BoList restored_;
  SumTable sums_;
  SumTable sums_wanted_;
  std::size_t fds_ = 0;
  std::size_t threads_ = 0;
};

std::string case_name(const ::testing::TestParamInfo<EngineFault::ParamType>& info) {
  const auto [kind, mode, workers] = info.param;
  return std::string(name_of(kind)) + (mode == IoMode::Auto ? "_auto" : "_buffered") +
         (workers > 0 ? "_workers" : "");
}

INSTANTIATE_TEST_SUITE_P(All, EngineFault,
                         ::testing::Combine(::testing::Values(ReactorKind::Uring, ReactorKind::Threads),
                                            ::testing::Values(IoMode::Auto, IoMode::Buffered),
                                            ::testing::Values(0U, 2U)),
                         case_name);

TEST_P(EngineFault, DumpWhereEachWriteFails) {
  fail_each_operation(Direction::Dump, Fault::Error, ENOSPC, ENOSPC);
  fail_each_operation(Direction::Dump, Fault::Error, EIO, EIO);
}
TEST_P(EngineFault, DumpWhereEachWriteIsShort) {
  fail_each_operation(Direction::Dump, Fault::Short, 0, 0);
}
TEST_P(EngineFault, DumpWhereEachWriteIsInterrupted) {
  fail_each_operation(Direction::Dump, Fault::Interrupted, 0, 0);
}
TEST_P(EngineFault, DumpWhereEachWriteWritesNothing) {
  fail_each_operation(Direction::Dump, Fault::Nothing, 0, EIO);
}

TEST_P(EngineFault, RestoreWhereEachReadFails) {
  fail_each_operation(Direction::Restore, Fault::Error, EIO, EIO);
}
TEST_P(EngineFault, RestoreWhereEachReadIsShort) {
  fail_each_operation(Direction::Restore, Fault::Short, 0, 0);
}
TEST_P(EngineFault, RestoreWhereEachReadIsInterrupted) {
  fail_each_operation(Direction::Restore, Fault::Interrupted, 0, 0);
}
TEST_P(EngineFault, RestoreWhereEachReadFindsTheEnd) {
  fail_each_operation(Direction::Restore, Fault::Nothing, 0, EBADMSG);
}

// The wait of a ThreadReactor does not fail.
class RingFault : public EngineFault {};

INSTANTIATE_TEST_SUITE_P(All, RingFault,
                         ::testing::Combine(::testing::Values(ReactorKind::Uring),
                                            ::testing::Values(IoMode::Auto, IoMode::Buffered),
                                            ::testing::Values(0U, 2U)),
                         case_name);

TEST_P(RingFault, Dump) {
  fail_each_operation(Direction::Dump, Fault::BrokenRing, 0, EIO);
}
TEST_P(RingFault, Restore) {
  fail_each_operation(Direction::Restore, Fault::BrokenRing, 0, EIO);
}

TEST_P(EngineFault, DumpWhereEachSystemCallFails) {
  fail_each_system_call(Direction::Dump, {}, {"openat", "fchmod", "ftruncate", "close", "renameat"});
}
TEST_P(EngineFault, DumpOverAnOldFileWhereEachSystemCallFails) {
  fail_each_system_call(Direction::Dump, Bytes(expected_.size() + 4 * kChunk, std::byte{0x77}),
                        {"fsync", "ftruncate", "close", "renameat"});
}
TEST_P(EngineFault, RestoreWhereEachSystemCallFails) {
  fail_each_system_call(Direction::Restore, {}, {"openat", "fstat"});
}

// Refusals of the real system.

// In a lane's thread, as always: the signal that comes with it goes nowhere.
TEST_P(EngineFault, AFileSizeLimitIsAnErrorAtTheStart) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low{kChunk, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  (void)::unlinkat(dir_.fd(), kPagesName, 0);
  std::optional<Result<PipelineStats>> stats;
  auto lane = LaneThread::start("lane", [&]() -> Result<void> {
    stats.emplace(run(Direction::Dump));
    return {};
  });
  ASSERT_TRUE(lane.ok());
  (void)lane->join();
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_TRUE(stats);
  expect_error(*stats, EFBIG, kPagesName);
  EXPECT_TRUE(dir_.names().empty());
  expect_nothing_left();
}

TEST_P(EngineFault, ADirectoryInTheWayFailsTheCommit) {
  (void)::unlinkat(dir_.fd(), kPagesName, 0);
  ASSERT_EQ(::mkdirat(dir_.fd(), kPagesName, 0700), 0);
  expect_error(run(Direction::Dump), EISDIR, "rename");
  EXPECT_EQ(dir_.names(), std::vector<std::string>{kPagesName}) << "the temporary file is gone";
}

TEST_P(EngineFault, ADirectoryThatWasRemovedIsAnError) {
  (void)::unlinkat(dir_.fd(), kPagesName, 0);
  ASSERT_EQ(::rmdir(dir_.path().c_str()), 0);
  expect_error(run(Direction::Dump), ENOENT, kPagesName);
}

}  // namespace
}  // namespace sluice
