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
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "fault/fault_reactor.h"
#include "fault/syscall_faults.h"
#include "pipeline/lane_thread.h"
#include "support/lane.h"
#include "support/process_state.h"
#include "support/rng.h"
#include "support/temp_dir.h"

namespace sluice {
namespace {

using test::BoList;
using test::Bytes;
using test::Fault;
using test::FaultReactor;
using test::kPagesName;
using test::ReactorKind;
using test::Rng;

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

BoList garbage_like(const BoList& bos) {
  BoList garbage;
  for (const Bytes& bo : bos) garbage.emplace_back(bo.size(), std::byte{0x5a});
  return garbage;
}

struct Outcome {
  Result<PipelineStats> stats;
  bool fired;
};

class EngineFault : public ::testing::TestWithParam<std::tuple<ReactorKind, IoMode, unsigned>> {
 protected:
  void SetUp() override {
    if (const std::string reason = test::unavailable(kind()); !reason.empty()) GTEST_SKIP() << reason;
    bos_ = some_bos();
    expected_ = test::serial_file(bos_);
    sums_ = SumTable::sized(expected_.size(), kChunk);
    ASSERT_TRUE(
        run(Direction::Dump, Fault::Error, UINT64_MAX, 0).stats.ok());  // whatever is loaded lazily is
    sums_wanted_ = sums_;
    fds_ = test::open_fds();
    threads_ = test::own_threads();
  }

  ReactorKind kind() const { return std::get<0>(GetParam()); }
  unsigned checksum_workers() const { return std::get<2>(GetParam()); }

  // One dump or restore with reactor, memory and stages of its own.
  Outcome run(Direction direction, Fault fault, std::uint64_t at, int err) {
    ImageLayout layout = std::move(ImageLayout::make(test::sizes_of(bos_), kChunk)).value();
    test::TestWorld world(kind(), [&](std::unique_ptr<Reactor> reactor) {
      return std::make_unique<FaultReactor>(std::move(reactor), fault, at, err);
    });
    const auto lane = test::make_lane(layout, 3, world);
    const auto& reactor = static_cast<const FaultReactor&>(lane->reactor());
    const test::LaneRun run{*lane, &sums_, {std::get<1>(GetParam()), true, true}, checksum_workers()};
    if (direction == Direction::Dump) {
      sums_ = SumTable::sized(expected_.size(), kChunk);
      auto stats = test::dump_to(dir_.fd(), kPagesName, bos_, run);
      return {std::move(stats), reactor.fired()};
    }
    sums_ = sums_wanted_;
    restored_ = garbage_like(bos_);
    auto stats = test::restore_from(dir_.fd(), kPagesName, restored_, run);
    return {std::move(stats), reactor.fired()};
  }

  void expect_nothing_left() const {
    EXPECT_EQ(test::open_fds(), fds_);
    EXPECT_TRUE(test::own_threads_come_down_to(threads_));
  }

  // Runs n = 0, 1, 2, ... and judges each; `err` 0: the fault must not matter.
  void fail_each(Direction direction, Fault fault, int injected, int err) {
    for (std::uint64_t at = 0;; ++at) {
      SCOPED_TRACE("operation " + std::to_string(at));
      if (direction == Direction::Dump) (void)::unlinkat(dir_.fd(), kPagesName, 0);
      const Outcome outcome = run(direction, fault, at, injected);
      expect_nothing_left();
      if (err == 0 || !outcome.fired) {
        ASSERT_TRUE(outcome.stats.ok()) << outcome.stats.error().what;
        if (direction == Direction::Dump) {
          ASSERT_EQ(dir_.read(kPagesName), expected_);
        } else {
          ASSERT_EQ(restored_, bos_);
        }
      } else {
        ASSERT_FALSE(outcome.stats.ok());
        EXPECT_EQ(outcome.stats.error().err, err) << outcome.stats.error().what;
        if (fault != Fault::BrokenRing) {
          const std::string& what = outcome.stats.error().what;
          EXPECT_TRUE(what.find(std::string(kPagesName) + " [") != std::string::npos ||
                      what.find("sync " + std::string(kPagesName)) == 0)
              << what;
        }
        if (direction == Direction::Dump) {
          EXPECT_TRUE(dir_.names().empty()) << dir_.names()[0];
        }
      }
      if (!outcome.fired) {
        EXPECT_GT(at, 4U) << "there are more operations than that";
        return;
      }
      if (HasFailure()) return;
    }
  }

  void fail_each_system_call_of_a_dump(const Bytes& old, const std::vector<std::string>& expected_fatal);

  test::TempDir dir_;
  BoList bos_;
  BoList restored_;
  Bytes expected_;
  SumTable sums_;
  SumTable sums_wanted_;
  std::size_t fds_ = 0;
  std::size_t threads_ = 0;
};

std::string case_name(const ::testing::TestParamInfo<EngineFault::ParamType>& info) {
  const auto [kind, mode, workers] = info.param;
  return std::string(test::name_of(kind)) + (mode == IoMode::Auto ? "_auto" : "_buffered") +
         (workers > 0 ? "_workers" : "");
}

INSTANTIATE_TEST_SUITE_P(All, EngineFault,
                         ::testing::Combine(::testing::Values(ReactorKind::Uring, ReactorKind::Threads),
                                            ::testing::Values(IoMode::Auto, IoMode::Buffered),
                                            ::testing::Values(0U, 2U)),
                         case_name);

TEST_P(EngineFault, DumpWhereEachWriteFails) {
  fail_each(Direction::Dump, Fault::Error, ENOSPC, ENOSPC);
  fail_each(Direction::Dump, Fault::Error, EIO, EIO);
}
TEST_P(EngineFault, DumpWhereEachWriteIsShort) {
  fail_each(Direction::Dump, Fault::Short, 0, 0);
}
TEST_P(EngineFault, DumpWhereEachWriteIsInterrupted) {
  fail_each(Direction::Dump, Fault::Interrupted, 0, 0);
}
TEST_P(EngineFault, DumpWhereEachWriteWritesNothing) {
  fail_each(Direction::Dump, Fault::Nothing, 0, EIO);
}

TEST_P(EngineFault, RestoreWhereEachReadFails) {
  fail_each(Direction::Restore, Fault::Error, EIO, EIO);
}
TEST_P(EngineFault, RestoreWhereEachReadIsShort) {
  fail_each(Direction::Restore, Fault::Short, 0, 0);
}
TEST_P(EngineFault, RestoreWhereEachReadIsInterrupted) {
  fail_each(Direction::Restore, Fault::Interrupted, 0, 0);
}
TEST_P(EngineFault, RestoreWhereEachReadFindsTheEnd) {
  fail_each(Direction::Restore, Fault::Nothing, 0, EBADMSG);
}

// The wait of a ThreadReactor does not fail.
class RingFault : public EngineFault {};

INSTANTIATE_TEST_SUITE_P(All, RingFault,
                         ::testing::Combine(::testing::Values(ReactorKind::Uring),
                                            ::testing::Values(IoMode::Auto, IoMode::Buffered),
                                            ::testing::Values(0U, 2U)),
                         case_name);

TEST_P(RingFault, Dump) {
  fail_each(Direction::Dump, Fault::BrokenRing, 0, EIO);
}
TEST_P(RingFault, Restore) {
  fail_each(Direction::Restore, Fault::BrokenRing, 0, EIO);
}

// Each system call of a dump, in turn. Some the engine can do without; then the file is right all the same.
// `old`: of an earlier dump, to be written over; empty: there is none.
void EngineFault::fail_each_system_call_of_a_dump(const Bytes& old,
                                                  const std::vector<std::string>& expected_fatal) {
  std::vector<std::string> fatal;
  for (std::uint64_t at = 0;; ++at) {
    (void)::unlinkat(dir_.fd(), kPagesName, 0);
    if (!old.empty()) {
      dir_.write(kPagesName, old);
      ASSERT_EQ(::fchmodat(dir_.fd(), kPagesName, 0600, 0), 0);
    }
    ImageLayout layout = std::move(ImageLayout::make(test::sizes_of(bos_), kChunk)).value();
    test::TestWorld world(kind());
    const auto lane = test::make_lane(layout, 3, world);
    const test::LaneRun run{
        *lane, nullptr, {std::get<1>(GetParam()), true, true, !old.empty()}, checksum_workers()};
    std::string fired;
    const auto stats = [&] {
      const test::SyscallFault fault(at, EIO);
      auto result = test::dump_to(dir_.fd(), kPagesName, bos_, run);
      fired = fault.fired() != nullptr ? fault.fired() : "";
      return result;
    }();
    SCOPED_TRACE(fired + ", call " + std::to_string(at));
    EXPECT_EQ(test::open_fds(), fds_ + 1) << "the reactor's own, a ring or an eventfd, and no other";
    if (stats.ok()) {
      ASSERT_EQ(dir_.names(), std::vector<std::string>{kPagesName});
      ASSERT_EQ(dir_.read(kPagesName), expected_);
    } else {
      EXPECT_EQ(stats.error().err, EIO);
      EXPECT_NE(stats.error().what.find(kPagesName), std::string::npos) << stats.error().what;
      // Nothing, or the old file as it was: never one with bytes of both.
      if (const std::vector<std::string> left = dir_.names(); !left.empty()) {
        EXPECT_EQ(left, std::vector<std::string>{kPagesName});
        EXPECT_EQ(dir_.read(kPagesName), old);
      }
      fatal.push_back(fired);
    }
    if (fired.empty()) break;
    if (HasFailure()) return;
  }
  for (const std::string& call : expected_fatal) {
    EXPECT_NE(std::find(fatal.begin(), fatal.end(), call), fatal.end())
        << call << " failed and nobody said so";
  }
}

TEST_P(EngineFault, DumpWhereEachSystemCallFails) {
  fail_each_system_call_of_a_dump({}, {"openat", "fchmod", "ftruncate", "close", "renameat"});
}

TEST_P(EngineFault, DumpOverAnOldFileWhereEachSystemCallFails) {
  fail_each_system_call_of_a_dump(Bytes(expected_.size() + 4 * kChunk, std::byte{0x77}),
                                  {"fsync", "ftruncate", "close", "renameat"});
}

TEST_P(EngineFault, RestoreWhereEachSystemCallFails) {
  std::vector<std::string> fatal;
  for (std::uint64_t at = 0;; ++at) {
    ImageLayout layout = std::move(ImageLayout::make(test::sizes_of(bos_), kChunk)).value();
    test::TestWorld world(kind());
    const auto lane = test::make_lane(layout, 3, world);
    SumTable sums = sums_wanted_;
    const test::LaneRun run{*lane, &sums, {std::get<1>(GetParam()), true, true}, checksum_workers()};
    BoList restored = garbage_like(bos_);
    std::string fired;
    const auto stats = [&] {
      const test::SyscallFault fault(at, EIO);
      auto result = test::restore_from(dir_.fd(), kPagesName, restored, run);
      fired = fault.fired() != nullptr ? fault.fired() : "";
      return result;
    }();
    SCOPED_TRACE(fired + ", call " + std::to_string(at));
    if (stats.ok()) {
      ASSERT_EQ(restored, bos_);
    } else {
      EXPECT_EQ(stats.error().err, EIO);
      EXPECT_NE(stats.error().what.find(kPagesName), std::string::npos) << stats.error().what;
      fatal.push_back(fired);
    }
    if (fired.empty()) break;
    if (HasFailure()) return;
  }
  for (const char* call : {"openat", "fstat"}) {
    EXPECT_NE(std::find(fatal.begin(), fatal.end(), call), fatal.end())
        << call << " failed and nobody said so";
  }
}

// Refusals of the real system.

// In a lane's thread, as always: the signal that comes with it goes nowhere.
TEST_P(EngineFault, AFileSizeLimitIsAnErrorAtTheStart) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low{kChunk, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  (void)::unlinkat(dir_.fd(), kPagesName, 0);
  std::optional<Outcome> outcome;
  auto lane = LaneThread::start("lane", [&]() -> Result<void> {
    outcome.emplace(run(Direction::Dump, Fault::Error, UINT64_MAX, 0));
    return {};
  });
  ASSERT_TRUE(lane.ok());
  (void)lane->join();
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_TRUE(outcome && !outcome->stats.ok());
  EXPECT_EQ(outcome->stats.error().err, EFBIG);
  EXPECT_TRUE(dir_.names().empty());
  expect_nothing_left();
}

TEST_P(EngineFault, ADirectoryInTheWayFailsTheCommit) {
  (void)::unlinkat(dir_.fd(), kPagesName, 0);
  ASSERT_EQ(::mkdirat(dir_.fd(), kPagesName, 0700), 0);
  const Outcome outcome = run(Direction::Dump, Fault::Error, UINT64_MAX, 0);
  ASSERT_FALSE(outcome.stats.ok());
  EXPECT_EQ(outcome.stats.error().err, EISDIR);
  EXPECT_NE(outcome.stats.error().what.find("rename"), std::string::npos);
  EXPECT_EQ(dir_.names(), std::vector<std::string>{kPagesName}) << "the temporary file is gone";
}

TEST_P(EngineFault, ADirectoryThatWasRemovedIsAnError) {
  (void)::unlinkat(dir_.fd(), kPagesName, 0);
  ASSERT_EQ(::rmdir(dir_.path().c_str()), 0);
  const Outcome outcome = run(Direction::Dump, Fault::Error, UINT64_MAX, 0);
  ASSERT_FALSE(outcome.stats.ok());
  EXPECT_EQ(outcome.stats.error().err, ENOENT);
  EXPECT_NE(outcome.stats.error().what.find(kPagesName), std::string::npos);
}

}  // namespace
}  // namespace sluice
