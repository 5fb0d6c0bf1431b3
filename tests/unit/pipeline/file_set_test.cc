// SPDX-License-Identifier: MIT
// Several files through one lane: each BO in its own, byte for byte what a serial writer makes, few open at
// once, and each failure of each operation named, with nothing left.
#include "pipeline/store/file_set.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/units.h"
#include "pipeline/store/fair_share.h"
#include "support/engine_fixture.h"
#include "support/rng.h"

namespace sluice {
namespace {

using namespace test;  // the fixture, and what it is made of

constexpr std::uint64_t kChunk = 128 * kKiB;

// With an empty one, one of a whole number of chunks less the header, one of zeros, and many small ones.
BoList some_bos() {
  Rng rng(11);
  BoList bos;
  for (const std::uint64_t bytes : {4 * kKiB, 300 * kKiB, std::uint64_t{0}, kChunk - kHeaderBytes, kChunk}) {
    bos.emplace_back(bytes);
    rng.fill(bos.back());
  }
  bos.emplace_back(200 * kKiB, std::byte{0});
  for (int i = 0; i < 20; ++i) {
    bos.emplace_back(rng.between(1, 5) * 4 * kKiB);
    rng.fill(bos.back());
  }
  return bos;
}

using Setting = std::tuple<ReactorKind, IoMode>;

class FileSet : public EngineTest, public ::testing::WithParamInterface<Setting> {
 protected:
  FileSet() : EngineTest(std::get<0>(GetParam()), some_bos()) {}

  void SetUp() override {
    EngineTest::SetUp();
    sums_ = unit_tables(layout_, kChunk);
  }

  FileOptions options() const { return {std::get<1>(GetParam()), true, true}; }
  std::unique_ptr<Lane> make_lane() {
    world_.emplace(kind_);
    return test::make_lane(layout_, kDepth, *world_);
  }

  Result<PipelineStats> dump(Lane& lane, std::size_t* most_fds = nullptr) {
    FileSetSink sink(dir_.fd(), names("working-"), layout_, lane.reactor(), options());
    MemoryCopy copy(Direction::Dump, layout_, lane.reactor(), bos_);
    ChecksumStage checksum(Direction::Dump, layout_, lane.reactor(), sums_, ChecksumOptions{}, nullptr);
    auto stats = lane.run(Route{&copy, &checksum, &sink}, nullptr, [&] {
      if (most_fds != nullptr) *most_fds = std::max(*most_fds, open_fds());
      return false;
    });
    if (!stats) return stats;
    sink.set_names(names());
    SLUICE_TRY(sink.commit());
    return stats;
  }

  Result<PipelineStats> restore(Lane& lane, BoList& target) {
    SLUICE_TRY_ASSIGN(const auto source,
                      FileSetSource::open(dir_.fd(), names(), layout_, lane.reactor(), options()));
    ChecksumStage checksum(Direction::Restore, layout_, lane.reactor(), sums_, ChecksumOptions{}, nullptr);
    MemoryCopy copy(Direction::Restore, layout_, lane.reactor(), target);
    return lane.run(Route{source.get(), &checksum, &copy});
  }

  ImageLayout layout_ = file_per_bo(bos_, kChunk);
  std::vector<SumTable> sums_;
  TempDir dir_;
  std::optional<TestWorld> world_;
};

std::string name_of_setting(const ::testing::TestParamInfo<Setting>& info) {
  return std::string(name_of(std::get<0>(info.param))) +
         (std::get<1>(info.param) == IoMode::Auto ? "Auto" : "Buffered");
}

INSTANTIATE_TEST_SUITE_P(Both, FileSet,
                         ::testing::Combine(::testing::Values(ReactorKind::Uring, ReactorKind::Threads),
                                            ::testing::Values(IoMode::Auto, IoMode::Buffered)),
                         name_of_setting);

TEST_P(FileSet, EachFileIsWhatASerialWriterMakesAndComesBack) {
  const auto lane = make_lane();
  const std::size_t fds = open_fds();
  std::size_t most_fds = 0;
  const auto dumped = dump(*lane, &most_fds);
  ASSERT_TRUE(dumped.ok()) << dumped.error().what;
  EXPECT_EQ(dumped->bytes, layout_.all_file_bytes());
  EXPECT_LE(most_fds, fds + kDepth) << "no more files are open than there are slots";
  for (std::size_t i = 0; i < bos_.size(); ++i) EXPECT_EQ(dir_.read(names()[i]), serial_file({bos_[i]})) << i;
  EXPECT_EQ(dir_.names().size(), bos_.size());
  BoList target = garbage();
  const auto restored = restore(*lane, target);
  expect_ok(restored);
  EXPECT_EQ(target, bos_);
  EXPECT_EQ(open_fds(), fds);
}

TEST_P(FileSet, AFileOfTheWrongSizeIsFoundBeforeAnythingIsRead) {
  const auto lane = make_lane();
  ASSERT_TRUE(dump(*lane).ok());
  Bytes shorter = dir_.read("pages-20");
  shorter.pop_back();
  dir_.write("pages-20", shorter);
  BoList target = garbage();
  const auto refused = restore(*lane, target);
  expect_error(refused, EBADMSG, "pages-20");
  EXPECT_EQ(target, garbage());
}

TEST_P(FileSet, WhatIsNoFileIsFoundBeforeAnythingIsRead) {
  const auto lane = make_lane();
  ASSERT_TRUE(dump(*lane).ok());
  ASSERT_EQ(::renameat(dir_.fd(), "pages-20", dir_.fd(), "elsewhere"), 0);
  ASSERT_EQ(::symlinkat("elsewhere", dir_.fd(), "pages-20"), 0);
  BoList target = garbage();
  const auto refused = restore(*lane, target);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().what,
            "pages-20 is not a regular file; move it out of the image directory [SL-I01]");
  EXPECT_EQ(target, garbage());
}

TEST_P(FileSet, ASumIsOfItsOwnFile) {
  const auto lane = make_lane();
  ASSERT_TRUE(dump(*lane).ok());
  const Bytes first = dir_.read("pages-0");
  dir_.write("pages-0", dir_.read("pages-9").size() == first.size() ? dir_.read("pages-9") : first);
  std::swap(sums_[0].sums[1], sums_[3].sums[1]);
  BoList target = garbage();
  const auto refused = restore(*lane, target);
  expect_error(refused, EBADMSG, "");
}

// Every read fails.
class UnreadableReactor final : public ForwardingReactor {
 public:
  explicit UnreadableReactor(Reactor& inner) : ForwardingReactor(inner) {}
  void read(Op& op, int, std::span<std::byte>, std::uint64_t) override { post(op, -EIO); }
};

// Goes on after chunks that cannot be read, as `sluice verify` does.
class Undeterred final : public Stage {
 public:
  explicit Undeterred(Stage& inner) : inner_(inner) {}
  const char* name() const override { return inner_.name(); }
  Result<Submit> submit(Slot& slot) override { return inner_.submit(slot); }
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override {
    Result<Progress> progress = inner_.advance(slot, op, result);
    if (!progress) return Progress::Done;
    return progress;
  }

 private:
  Stage& inner_;
};

TEST_P(FileSet, AFileThatCannotBeReadIsClosedAfterItsLastChunk) {
  bos_.assign(100, Bytes(2 * kChunk, std::byte{1}));
  layout_ = file_per_bo(bos_, kChunk);
  sums_.clear();
  const auto lane = make_lane();
  ASSERT_TRUE(dump(*lane).ok());

  UnreadableReactor reactor(lane->reactor());
  const auto source = FileSetSource::open(dir_.fd(), names(), layout_, reactor, options());
  ASSERT_TRUE(source.ok()) << source.error().what;
  Undeterred undeterred(**source);
  const std::array<Stage*, 1> route{&undeterred};
  Pipeline pipeline(layout_, lane->slots(), route, reactor);
  const std::size_t fds = open_fds();
  std::size_t most_fds = 0;
  const auto read = pipeline.run(nullptr, [&] {
    most_fds = std::max(most_fds, open_fds());
    return false;
  });
  ASSERT_TRUE(read.ok()) << read.error().what;
  EXPECT_LE(most_fds, fds + 2 * kDepth) << "one for direct reads and one for others, of each slot's file";
  EXPECT_EQ(open_fds(), fds);
}

// It is not on the disk: an earlier turn does not keep it off, and nothing counts it as there.
TEST_P(FileSet, AChunkThatTheParentHasTakesNoTurnOnTheDisk) {
  bos_.assign(1, Bytes(4 * kChunk, std::byte{1}));
  layout_ = file_per_bo(bos_, kChunk);
  const auto lane = make_lane();
  FairShare share;
  FairShare::Member earlier(&share, 0);
  ASSERT_TRUE(earlier.begin());
  FileOptions later = options();
  later.share = &share;
  later.turn = 1;
  FileSetSink sink(dir_.fd(), {"working"}, layout_, lane->reactor(), later);
  const std::array<Stage*, 1> route{&sink};
  const Pipeline pipeline(layout_, lane->slots(), route, lane->reactor());  // sets the slots up
  for (std::uint32_t i = 0; i < kDepth; ++i) {
    Slot& slot = lane->slots()[i];
    slot.chunk = Chunk{i, i * kChunk, kChunk, 0};
    slot.known_units.assign(kChunk / kZeroUnitBytes, i == 2);
    std::fill(slot.buffer.begin(), slot.buffer.end(), std::byte{1});
  }
  const auto submit = [&](std::size_t i) { return std::move(sink.submit(lane->slots()[i])).value(); };
  EXPECT_EQ(submit(0), Submit::Started) << "one at a time is never stopped";
  EXPECT_EQ(submit(1), Submit::Busy) << "the second waits for the earlier turn";
  EXPECT_EQ(submit(2), Submit::Started);
  EXPECT_FALSE(lane->slots()[2].has_turn);
  while (lane->reactor().in_flight() > 0) {
    std::array<Completion, kDepth> done;
    const std::size_t count = std::move(lane->reactor().wait(done)).value();
    for (const Completion& each : std::span(done).first(count))
      EXPECT_TRUE(sink.advance(*each.op->slot, *each.op, each.result).ok());
  }
  earlier.end();
}

// Reads, writes and syncs.
TEST_P(FileSet, EachOperationThatFailsIsNamedAndLeavesNothing) {
  const std::uint64_t operations = fail_each([&](std::uint64_t nth) {
    const FaultyLane faulty = lane_that_fails(layout_, Fault::Error, nth, ENOSPC);
    const auto dumped = dump(*faulty.lane);
    if (faulty.fired()) {
      expect_error(dumped, ENOSPC, "working-");
      EXPECT_TRUE(dir_.names().empty());
    } else {
      expect_ok(dumped);
    }
    return faulty.fired();
  });
  EXPECT_GT(operations, 2 * bos_.size()) << "a write and a sync of each file, at least";
  (void)fail_each([&](std::uint64_t nth) {
    const FaultyLane faulty = lane_that_fails(layout_, Fault::Error, nth, EIO);
    BoList target = garbage();
    const auto restored = restore(*faulty.lane, target);
    if (faulty.fired()) {
      expect_error(restored, EIO, "pages-");
    } else {
      expect_ok(restored);
      EXPECT_EQ(target, bos_);
    }
    return faulty.fired();
  });
}

}  // namespace
}  // namespace sluice
