// SPDX-License-Identifier: MIT
#include "pipeline/replica/leader_lane.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <thread>
#include <vector>

#include "base/units.h"

namespace sluice {
namespace {

constexpr std::uint64_t kChunk = kMiB;

class LeaderLaneTest : public ::testing::Test {
 protected:
  LeaderLaneTest()
      : layout_(std::move(ImageLayout::make(std::array{4 * kChunk}, kChunk)).value()),
        lane_(layout_, std::make_shared<const KnownFiles::Tables>(unit_tables(layout_)), "file",
              LaneWorld::real()) {}

  bool was_told() const {
    eventfd_t count = 0;
    return ::eventfd_read(event_.get(), &count) == 0;
  }
  static UniqueFd a_file() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

  ImageLayout layout_;
  LeaderLane lane_;
  UniqueFd event_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

TEST_F(LeaderLaneTest, ARangeIsKnownWhenAllItsChunksAre) {
  EXPECT_FALSE(lane_.has(kChunk - 8, 16));
  lane_.publish(0);
  EXPECT_TRUE(lane_.has(kChunk - 8, 8));
  EXPECT_FALSE(lane_.has(kChunk - 8, 16));
  EXPECT_EQ(lane_.unsettled(kChunk - 8, 16), 1U);
  lane_.publish(1);
  EXPECT_TRUE(lane_.has(kChunk - 8, 16));
  EXPECT_EQ(lane_.unsettled(kChunk - 8, 16), std::nullopt);
  lane_.end(std::nullopt);
}

TEST_F(LeaderLaneTest, AWatcherIsToldOfItsChunkAndOnce) {
  ASSERT_TRUE(lane_.watch(2, event_.get()));
  lane_.publish(1);
  EXPECT_FALSE(was_told());
  lane_.publish(2);
  EXPECT_TRUE(was_told());
  lane_.publish(3);
  EXPECT_FALSE(was_told());
  EXPECT_FALSE(lane_.watch(2, event_.get())) << "it is settled";
  lane_.end(LeaderLane::Complete{a_file(), {}, {}});
  EXPECT_FALSE(was_told());
}

TEST_F(LeaderLaneTest, AForgottenWatcherIsNotTold) {
  ASSERT_TRUE(lane_.watch(2, event_.get()));
  lane_.forget(event_.get());
  lane_.publish(2);
  EXPECT_FALSE(was_told());
  lane_.end(std::nullopt);
}

// Nobody waits for what a lane that has failed will never hash.
TEST_F(LeaderLaneTest, TheEndSettlesAllAndMakesNothingKnown) {
  ASSERT_TRUE(lane_.watch(2, event_.get()));
  lane_.end(std::nullopt);
  EXPECT_TRUE(was_told());
  EXPECT_EQ(lane_.unsettled(0, 4 * kChunk), std::nullopt);
  EXPECT_FALSE(lane_.has(0, 8));
  EXPECT_EQ(lane_.wait_for_end([] { return false; }).error().err, ECANCELED);
}

TEST_F(LeaderLaneTest, WhoWaitsForTheEndGetsTheFile) {
  std::thread waiting([this] { EXPECT_TRUE(lane_.wait_for_end([] { return false; }).ok()); });
  UniqueFd file = a_file();
  const int number = file.get();
  lane_.end(LeaderLane::Complete{std::move(file), {}, {}});
  waiting.join();
  EXPECT_EQ(lane_.file(), number);
}

TEST_F(LeaderLaneTest, WhoWaitsCanGiveUp) {
  EXPECT_EQ(lane_.wait_for_end([] { return true; }).error().err, ECANCELED);
  lane_.end(std::nullopt);
}

// One publishes as fast as it can, the others watch each chunk.
TEST_F(LeaderLaneTest, NoWatcherMissesItsChunk) {
  const ImageLayout layout =
      std::move(ImageLayout::make(std::array{std::uint64_t{4000} * 4096}, 4096)).value();
  LeaderLane lane(layout, std::make_shared<const KnownFiles::Tables>(unit_tables(layout, 4096)), "file",
                  LaneWorld::real());
  std::vector<std::thread> watchers;
  for (int i = 0; i < 3; ++i)
    watchers.emplace_back([&lane] {
      const UniqueFd event(::eventfd(0, EFD_CLOEXEC));
      for (std::uint64_t chunk = 0; chunk < 4000; ++chunk) {
        eventfd_t count = 0;
        if (lane.watch(chunk, event.get())) {
          ASSERT_EQ(::eventfd_read(event.get(), &count), 0);
        }
        ASSERT_TRUE(lane.has(chunk * 4096, 8));
      }
    });
  for (std::uint64_t chunk = 0; chunk < layout.chunk_count(); ++chunk) lane.publish(chunk);
  for (std::thread& watcher : watchers) watcher.join();
  lane.end(std::nullopt);
}

}  // namespace
}  // namespace sluice
