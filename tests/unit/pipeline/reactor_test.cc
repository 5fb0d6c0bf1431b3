// SPDX-License-Identifier: MIT
// What every Reactor promises, on real files, pipes and eventfds, for both kinds.
#include "pipeline/reactor/reactor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "pipeline/slot.h"
#include "support/lane.h"
#include "support/process_state.h"
#include "support/rng.h"
#include "support/temp_dir.h"

namespace sluice {
namespace {

using test::Bytes;
using test::ReactorKind;
using namespace std::chrono_literals;

constexpr unsigned kEntries = 8;

class ReactorTest : public ::testing::TestWithParam<ReactorKind> {
 protected:
  void SetUp() override {
    const std::string reason = test::unavailable(GetParam());
    if (!reason.empty()) GTEST_SKIP() << reason;
    reactor_ = test::make_reactor_of(GetParam(), kEntries);
  }

  UniqueFd create(const char* name) {
    return UniqueFd(::openat(dir_.fd(), name, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  }

  // Until one Op completed; it must be `op`.
  std::int32_t wait_for(const Op& op) {
    std::array<Completion, kEntries> completions;
    const auto count = reactor_->wait(completions);
    EXPECT_TRUE(count.ok());
    EXPECT_EQ(*count, 1U);
    EXPECT_EQ(completions[0].op, &op);
    EXPECT_FALSE(op.in_flight);
    return completions[0].result;
  }

  test::TempDir dir_;
  std::unique_ptr<Reactor> reactor_;
};

std::string kind_name(const ::testing::TestParamInfo<ReactorKind>& info) {
  return test::name_of(info.param);
}

INSTANTIATE_TEST_SUITE_P(Both, ReactorTest, ::testing::Values(ReactorKind::Uring, ReactorKind::Threads),
                         kind_name);

TEST_P(ReactorTest, WritesAndReadsAtOffsets) {
  const UniqueFd fd = create("file");
  Bytes data(10'000);
  test::Rng(1).fill(data);
  Op op;
  reactor_->write(op, fd.get(), data, 123);
  EXPECT_TRUE(op.in_flight);
  EXPECT_EQ(reactor_->in_flight(), 1U);
  EXPECT_EQ(wait_for(op), 10'000);
  EXPECT_EQ(reactor_->in_flight(), 0U);
  Bytes back(20'000);
  reactor_->read(op, fd.get(), back, 123);
  EXPECT_EQ(wait_for(op), 10'000) << "the file ends there";
  back.resize(10'000);
  EXPECT_EQ(back, data);
  reactor_->read(op, fd.get(), back, 1'000'000);
  EXPECT_EQ(wait_for(op), 0);
}

TEST_P(ReactorTest, WhatCannotBeStartedCompletesWithItsErrno) {
  Bytes data(16);
  Op op;
  reactor_->write(op, -1, data, 0);
  EXPECT_EQ(wait_for(op), -EBADF);
  const UniqueFd read_only(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  reactor_->write(op, read_only.get(), data, 0);
  EXPECT_EQ(wait_for(op), -EBADF);
  reactor_->read(op, dir_.fd(), data, 0);
  EXPECT_EQ(wait_for(op), -EISDIR);
  reactor_->poll_readable(op, -1, 1s);
  EXPECT_EQ(wait_for(op), -EBADF);
  const int closed = ::dup(read_only.get());
  ASSERT_EQ(::close(closed), 0);
  reactor_->poll_readable(op, closed, 1s);
  EXPECT_EQ(wait_for(op), -EBADF);
}

TEST_P(ReactorTest, SyncsAFileAndSaysWhenItCannot) {
  const UniqueFd file = create("file");
  ASSERT_EQ(::write(file.get(), "bytes", 5), 5);
  Op op;
  reactor_->sync_data(op, file.get());
  EXPECT_EQ(wait_for(op), 0);
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  const UniqueFd read_end(pipe[0]), write_end(pipe[1]);
  reactor_->sync_data(op, write_end.get());
  EXPECT_EQ(wait_for(op), -EINVAL);
  reactor_->sync_data(op, -1);
  EXPECT_EQ(wait_for(op), -EBADF);
}

TEST_P(ReactorTest, MoreOpsThanTheOutputHolds) {
  const UniqueFd fd = create("file");
  Bytes data(4096);
  std::array<Op, kEntries> ops;
  for (std::size_t i = 0; i < ops.size(); ++i) reactor_->write(ops[i], fd.get(), data, i * 4096);
  EXPECT_EQ(reactor_->in_flight(), ops.size());
  std::array<Completion, 3> few;
  std::size_t seen = 0;
  while (seen < ops.size()) {
    const auto count = reactor_->wait(few);
    ASSERT_TRUE(count.ok());
    ASSERT_GE(*count, 1U);
    for (std::size_t i = 0; i < *count; ++i) {
      EXPECT_EQ(few[i].result, 4096);
      EXPECT_FALSE(few[i].op->in_flight);
    }
    seen += *count;
    EXPECT_EQ(reactor_->in_flight(), ops.size() - seen);
  }
}

TEST_P(ReactorTest, ManyRoundsOverFewEntries) {
  const UniqueFd fd = create("file");
  std::array<Op, kEntries> ops;
  std::array<Completion, kEntries> completions;
  std::array<std::uint64_t, kEntries> words{};
  std::uint64_t started = 0;
  std::uint64_t finished = 0;
  const std::uint64_t rounds = 2000;
  for (std::size_t i = 0; i < ops.size(); ++i) ops[i].tag = static_cast<std::uint32_t>(i);
  while (finished < rounds) {
    for (Op& op : ops) {
      if (op.in_flight || started == rounds) continue;
      words[op.tag] = started;
      reactor_->write(op, fd.get(), std::as_bytes(std::span(&words[op.tag], 1)), started * 8);
      ++started;
    }
    const auto count = reactor_->wait(completions);
    ASSERT_TRUE(count.ok());
    for (std::size_t i = 0; i < *count; ++i) ASSERT_EQ(completions[i].result, 8);
    finished += *count;
  }
  const Bytes file = dir_.read("file");
  ASSERT_EQ(file.size(), rounds * 8);
  for (std::uint64_t i = 0; i < rounds; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, &file[i * 8], 8);
    ASSERT_EQ(word, i);
  }
}

TEST_P(ReactorTest, APostedCompletionNeverWaitsForWhatIsSlow) {
  const UniqueFd never(::eventfd(0, EFD_CLOEXEC));
  Op slow;
  Op posted;
  reactor_->poll_readable(slow, never.get(), 1h);
  reactor_->post(posted, 42);
  EXPECT_EQ(wait_for(posted), 42);
  EXPECT_EQ(reactor_->in_flight(), 1U);
  EXPECT_EQ(::eventfd_write(never.get(), 1), 0);
  EXPECT_EQ(wait_for(slow), 0);
}

TEST_P(ReactorTest, PostedInOrderWithTheirResults) {
  std::array<Op, kEntries> ops;
  for (std::size_t i = 0; i < ops.size(); ++i) reactor_->post(ops[i], -static_cast<std::int32_t>(i));
  std::array<Completion, kEntries> completions;
  const auto count = reactor_->wait(completions);
  ASSERT_TRUE(count.ok());
  ASSERT_EQ(*count, ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    EXPECT_EQ(completions[i].op, &ops[i]);
    EXPECT_EQ(completions[i].result, -static_cast<std::int32_t>(i));
  }
}

TEST_P(ReactorTest, PollOfWhatIsReadableAlready) {
  const UniqueFd fd(::eventfd(1, EFD_CLOEXEC));
  Op op;
  reactor_->poll_readable(op, fd.get(), 1h);
  EXPECT_EQ(wait_for(op), 0);
  reactor_->poll_readable(op, fd.get(), 0ns);
  const std::int32_t result = wait_for(op);
  EXPECT_TRUE(result == 0 || result == -ETIME) << "no time to look is not an error of its own";
}

TEST_P(ReactorTest, PollTimesOut) {
  const UniqueFd fd(::eventfd(0, EFD_CLOEXEC));
  Op op;
  const std::uint64_t before_ns = reactor_->now_ns();
  reactor_->poll_readable(op, fd.get(), 5ms);
  EXPECT_EQ(wait_for(op), -ETIME);
  EXPECT_GE(reactor_->now_ns() - before_ns, 5'000'000U) << "not before its time";
  reactor_->poll_readable(op, fd.get(), -5s);
  EXPECT_EQ(wait_for(op), -ETIME);
}

TEST_P(ReactorTest, PollOfAPipeWhoseWriterWent) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  Op op;
  reactor_->poll_readable(op, reader.get(), 1h);
  writer.reset();
  EXPECT_EQ(wait_for(op), 0) << "reading it would not block";
}

TEST_P(ReactorTest, AStreamHasNoOffset) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  Bytes data(5'000);
  test::Rng(2).fill(data);
  Op op;
  reactor_->poll_writable(op, writer.get(), 1h);
  EXPECT_EQ(wait_for(op), 0);
  reactor_->write(op, writer.get(), data, kStream);
  EXPECT_EQ(wait_for(op), 5'000);
  Bytes back(4'000);
  for (const std::size_t part : {4'000U, 1'000U}) {
    reactor_->read(op, reader.get(), back, kStream);
    EXPECT_EQ(wait_for(op), static_cast<std::int32_t>(part));
    EXPECT_TRUE(std::equal(back.begin(), back.begin() + static_cast<long>(part),
                           data.begin() + (part == 4'000U ? 0 : 4'000)));
  }
  writer.reset();
  reactor_->read(op, reader.get(), back, kStream);
  EXPECT_EQ(wait_for(op), 0) << "the stream's end";
}

TEST_P(ReactorTest, PollOfAFullPipeAndOfOneThatNobodyReads) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
  UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  const Bytes data(4096);
  while (::write(writer.get(), data.data(), data.size()) > 0) {
  }
  Op op;
  reactor_->poll_writable(op, writer.get(), 5ms);
  EXPECT_EQ(wait_for(op), -ETIME);
  reactor_->poll_writable(op, writer.get(), 1h);
  reader.reset();
  EXPECT_EQ(wait_for(op), 0) << "writing would not block";
  reactor_->poll_writable(op, -1, 1s);
  EXPECT_EQ(wait_for(op), -EBADF);
}

// Each poll and its timeout give one completion, however they race, and their memory is used again and again.
TEST_P(ReactorTest, PollsThatRaceWithTheirTimeoutsCompleteOnce) {
  const UniqueFd fd(::eventfd(0, EFD_CLOEXEC));
  std::array<Op, kEntries> ops;
  std::array<Completion, kEntries> completions;
  unsigned timed_out = 0;
  for (int round = 0; round < 200; ++round) {
    for (std::size_t i = 0; i < ops.size(); ++i) {
      reactor_->poll_readable(ops[i], fd.get(), std::chrono::microseconds(i * 10));
    }
    if (round % 2 == 0) {
      ASSERT_EQ(::eventfd_write(fd.get(), 1), 0);
    }
    std::size_t seen = 0;
    while (seen < ops.size()) {
      const auto count = reactor_->wait(completions);
      ASSERT_TRUE(count.ok());
      for (std::size_t i = 0; i < *count; ++i) {
        ASSERT_TRUE(completions[i].result == 0 || completions[i].result == -ETIME) << completions[i].result;
        timed_out += completions[i].result == -ETIME ? 1 : 0;
      }
      seen += *count;
    }
    ASSERT_EQ(reactor_->in_flight(), 0U);
    eventfd_t value = 0;
    if (round % 2 == 0) {
      ASSERT_EQ(::eventfd_read(fd.get(), &value), 0);
    }
  }
  EXPECT_GE(timed_out, 100 * ops.size()) << "in the rounds without an event";
}

// More fences at once than there are workers: disk work goes on all the same.
TEST_P(ReactorTest, PollsDoNotHoldUpReads) {
  const UniqueFd never(::eventfd(0, EFD_CLOEXEC));
  const UniqueFd fd = create("file");
  Bytes data(4096);
  std::array<Op, kEntries - 1> polls;
  for (Op& op : polls) reactor_->poll_readable(op, never.get(), 1h);
  Op op;
  for (int i = 0; i < 20; ++i) {
    reactor_->write(op, fd.get(), data, 0);
    EXPECT_EQ(wait_for(op), 4096);
  }
  ASSERT_EQ(::eventfd_write(never.get(), 1), 0);
  std::array<Completion, kEntries> completions;
  while (reactor_->in_flight() > 0) {
    const auto count = reactor_->wait(completions);
    ASSERT_TRUE(count.ok());
    for (std::size_t i = 0; i < *count; ++i) EXPECT_EQ(completions[i].result, 0);
  }
}

TEST_P(ReactorTest, LeavesNoDescriptorAndNoThreadOfItsOwn) {
  reactor_.reset();
  const Bytes data(100);
  const std::size_t fds = test::open_fds();
  const std::size_t threads = test::own_threads();
  for (int i = 0; i < 3; ++i) {
    reactor_ = test::make_reactor_of(GetParam(), kEntries);
    const UniqueFd fd = create("file");
    Op op;
    reactor_->write(op, fd.get(), data, 0);
    EXPECT_EQ(wait_for(op), 100);
    reactor_.reset();
  }
  EXPECT_EQ(test::open_fds(), fds);
  EXPECT_TRUE(test::own_threads_come_down_to(threads));
}

}  // namespace
}  // namespace sluice
