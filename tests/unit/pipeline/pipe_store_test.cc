// SPDX-License-Identifier: MIT
// The pipe stage on real pipes: bytes, order, ends, what the messages say, each operation failing once, and a
// lane that is cancelled while the other end stands still. The other end works in the lane's own thread,
// between completions, so every run is the same.
#include "pipeline/store/pipe_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "support/engine_fixture.h"
#include "support/rng.h"

namespace sluice {
namespace {

using namespace test;  // the fixture, and what it is made of

constexpr std::uint64_t kChunk = 512 * kKiB;  // several transfers

BoList some_bos() {
  Rng rng(7);
  BoList bos;
  for (const std::uint64_t bytes :
       {4 * kKiB, 3 * kChunk + 100 * kKiB, std::uint64_t{0}, kChunk - kHeaderBytes, kChunk}) {
    bos.emplace_back(bytes);
    rng.fill(bos.back());
  }
  bos.emplace_back(200 * kKiB, std::byte{0});
  return bos;
}

// The other ends of a lane's pipes.
class Peer {
 public:
  Peer(Direction direction, std::map<std::string, Bytes> files)
      : direction_(direction), files_(std::move(files)) {}

  OpenPipe open() {
    return [this](const std::string& name) -> Result<UniqueFd> {
      opened.push_back(name);
      if (name == refuses) return make_error(ECONNRESET, "open " + name);
      std::array<int, 2> ends{};
      if (::pipe(ends.data()) != 0) return make_error(errno, "pipe");
      UniqueFd reader(ends[0]), writer(ends[1]);
      UniqueFd& ours = direction_ == Direction::Dump ? reader : writer;
      EXPECT_EQ(::fcntl(ours.get(), F_SETFL, O_NONBLOCK), 0);
      name_ = name;
      at_ = 0;
      UniqueFd theirs = std::move(direction_ == Direction::Dump ? writer : reader);
      pump();  // the last of the file before
      end_ = std::move(ours);
      if (direction_ == Direction::Dump) files_[name].clear();
      pump();
      return theirs;
    };
  }

  // As much as goes without waiting.
  void pump() {
    if (!end_ || stalls) return;
    if (direction_ == Direction::Dump) {
      std::array<std::byte, 8192> some;
      ssize_t got = 0;
      while ((got = ::read(end_.get(), some.data(), some.size())) > 0) {
        Bytes& file = files_[name_];
        file.insert(file.end(), some.begin(), some.begin() + got);
        if (file.size() >= dies_after) return end_.reset();
      }
      if (got == 0) end_.reset();
    } else {
      const Bytes& file = files_[name_];
      while (at_ < file.size()) {
        const ssize_t gave = ::write(end_.get(), &file[at_], file.size() - at_);
        if (gave < 0) return;
        at_ += static_cast<std::size_t>(gave);
      }
      end_.reset();
    }
  }

  const Bytes& file(const std::string& name) { return files_[name]; }

  // Bytes that lie in the pipe.
  int waiting() const {
    int bytes = 0;
    return end_ && ::ioctl(end_.get(), FIONREAD, &bytes) == 0 ? bytes : 0;
  }

  std::vector<std::string> opened;
  std::string refuses;
  bool stalls = false;
  std::size_t dies_after = SIZE_MAX;

 private:
  Direction direction_;
  std::map<std::string, Bytes> files_;
  UniqueFd end_;  // of the file under way
  std::string name_;
  std::size_t at_ = 0;
};

class PipeStoreTest : public EngineTest, public ::testing::WithParamInterface<ReactorKind> {
 protected:
  PipeStoreTest() : EngineTest(GetParam(), some_bos()) {}

  void SetUp() override {
    EngineTest::SetUp();
    (void)::signal(SIGPIPE, SIG_IGN);
    for (std::size_t i = 0; i < bos_.size(); ++i) files_[names_[i]] = serial_file({bos_[i]});
  }

  Result<PipelineStats> run(Direction direction, Lane& lane, Peer& peer,
                            const std::function<bool()>& cancelled = nullptr) {
    PipeStore store(direction, peer.open(), names_, layout_, lane.reactor());
    MemoryCopy copy(direction, layout_, lane.reactor(), direction == Direction::Dump ? bos_ : target_);
    return lane.run(Route{&copy, &store}.towards(direction), nullptr, [&] {
      peer.pump();
      return cancelled && cancelled();
    });
  }

  Result<PipelineStats> run(Direction direction, Peer& peer,
                            const std::function<bool()>& cancelled = nullptr) {
    const FaultyLane right = lane_that_fails(layout_, Fault::Error, kNever);
    const std::size_t fds = open_fds();
    auto stats = run(direction, *right.lane, peer, cancelled);
    peer.pump();
    EXPECT_EQ(right.lane->reactor().in_flight(), 0U);
    if (!peer.stalls) {
      EXPECT_EQ(open_fds(), fds);
    }
    return stats;
  }

  BoList target_ = garbage();
  ImageLayout layout_ = file_per_bo(bos_, kChunk);
  std::vector<std::string> names_ = names();
  std::map<std::string, Bytes> files_;
};

std::string kind_name(const ::testing::TestParamInfo<ReactorKind>& info) {
  return name_of(info.param);
}

INSTANTIATE_TEST_SUITE_P(Both, PipeStoreTest, ::testing::Values(ReactorKind::Uring, ReactorKind::Threads),
                         kind_name);

TEST_P(PipeStoreTest, EachFileIsWhatASerialWriterMakes) {
  Peer peer(Direction::Dump, {});
  const auto stats = run(Direction::Dump, peer);
  ASSERT_TRUE(stats.ok()) << stats.error().what;
  EXPECT_EQ(stats->bytes, layout_.all_file_bytes());
  EXPECT_EQ(peer.opened, names_) << "each once, in order";
  for (const std::string& name : names_) EXPECT_EQ(peer.file(name), files_[name]) << name;
}

TEST_P(PipeStoreTest, WhatWasWrittenComesBack) {
  Peer peer(Direction::Restore, files_);
  const auto stats = run(Direction::Restore, peer);
  ASSERT_TRUE(stats.ok()) << stats.error().what;
  EXPECT_EQ(target_, bos_);
  EXPECT_EQ(peer.opened, names_);
}

TEST_P(PipeStoreTest, AReaderThatDiesIsAnError) {
  Peer peer(Direction::Dump, {});
  peer.dies_after = files_["pages-0"].size() + kChunk;
  expect_error(run(Direction::Dump, peer), EPIPE, "write pages-1 [");
}

TEST_P(PipeStoreTest, AStreamThatEndsEarlyIsAnError) {
  files_["pages-1"].resize(2 * kChunk + 5);
  Peer peer(Direction::Restore, files_);
  expect_error(run(Direction::Restore, peer), ENODATA,
               "read pages-1 [1048581, 1572864) of the image stream: "
               "the stream ends early");
}

TEST_P(PipeStoreTest, AnEmptyStreamIsAnError) {
  files_["pages-0"].clear();
  Peer peer(Direction::Restore, files_);
  expect_error(run(Direction::Restore, peer), ENODATA, "read pages-0 [0, ");
}

TEST_P(PipeStoreTest, AByteMoreThanTheTableAsksForIsAnError) {
  files_["pages-3"].push_back(std::byte{0});
  Peer peer(Direction::Restore, files_);
  expect_error(run(Direction::Restore, peer), EBADMSG,
               "read pages-3 [524288, 524288) of the image stream: "
               "the stream has more");
}

TEST_P(PipeStoreTest, AStreamThatCannotBeOpenedIsAnError) {
  for (const Direction direction : {Direction::Dump, Direction::Restore}) {
    Peer peer(direction, files_);
    peer.refuses = "pages-4";
    expect_error(run(direction, peer), ECONNRESET, "open pages-4");
  }
}

// Nobody reads, or writes, and nothing but the lane's own looking up from time to time ends it.
TEST_P(PipeStoreTest, ALaneIsCancelledWhileItsPipeStandsStill) {
  for (const Direction direction : {Direction::Dump, Direction::Restore}) {
    bos_.assign(1, Bytes(2 * static_cast<std::uint64_t>(kPipeBytes), std::byte{7}));
    target_ = garbage();
    names_ = {"pages"};
    layout_ = std::move(ImageLayout::make(sizes_of(bos_), kChunk)).value();
    Peer peer(direction, {});
    peer.stalls = true;
    int waiting = 0;
    unsigned unchanged = 0;
    const auto stats = run(direction, peer, [&] {
      unchanged = peer.waiting() == waiting ? unchanged + 1 : 0;
      waiting = peer.waiting();
      return unchanged == 2 * kDepth;
    });
    expect_error(stats, ECANCELED, "cancelled");
  }
}

// Reads and writes.
TEST_P(PipeStoreTest, EachTransferFailsOnce) {
  struct Case {
    Fault fault;
    int injected;
    int dump_err, restore_err;  // 0: must not matter
  };
  for (const Case& one : {Case{Fault::Error, EIO, EIO, EIO}, Case{Fault::Error, EPIPE, EPIPE, EPIPE},
                          Case{Fault::Short, 0, 0, 0}, Case{Fault::Interrupted, 0, 0, 0},
                          Case{Fault::Error, EAGAIN, 0, 0}, Case{Fault::Nothing, 0, EIO, ENODATA}}) {
    for (const Direction direction : {Direction::Dump, Direction::Restore}) {
      SCOPED_TRACE(std::string(direction == Direction::Dump ? "dump" : "restore") + ", fault " +
                   std::to_string(static_cast<int>(one.fault)) + ", errno " + std::to_string(one.injected));
      const std::uint64_t transfers = fail_each([&](std::uint64_t nth) {
        Peer peer(direction, files_);
        target_ = garbage();
        const FaultyLane faulty = lane_that_fails(layout_, one.fault, nth, one.injected);
        const auto stats = run(direction, *faulty.lane, peer);
        peer.pump();
        const int err = direction == Direction::Dump ? one.dump_err : one.restore_err;
        // That nothing comes is how a file ends, once.
        if (err == 0 || !faulty.fired() || (one.fault == Fault::Nothing && stats.ok())) {
          expect_ok(stats);
          if (direction == Direction::Dump) {
            for (const std::string& name : names_) EXPECT_EQ(peer.file(name), files_[name]) << name;
          } else {
            EXPECT_EQ(target_, bos_);
          }
        } else {
          expect_error(stats, err, "pages-");
        }
        return faulty.fired();
      });
      EXPECT_GT(transfers, layout_.chunk_count()) << "there are more transfers than that";
    }
  }
}

TEST_P(PipeStoreTest, ABrokenRingEndsTheRun) {
  if (GetParam() == ReactorKind::Threads) GTEST_SKIP() << "its wait does not fail";
  for (const Direction direction : {Direction::Dump, Direction::Restore}) {
    Peer peer(direction, files_);
    const FaultyLane faulty = lane_that_fails(layout_, Fault::BrokenRing, 9);
    expect_error(run(direction, *faulty.lane, peer), EIO, "the ring broke");
  }
}

}  // namespace
}  // namespace sluice
