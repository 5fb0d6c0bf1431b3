// SPDX-License-Identifier: MIT
// LaneRoom: no more lanes of a GPU than fit; the others wait for one to end, or for the end of all.
#include "plugin/contents/lane_room.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

namespace sluice::plugin {
namespace {

constexpr std::uint32_t kGpu = 128, kOther = 129;

bool never() {
  return false;
}

TEST(LaneRoom, OneThatDoesNotFitWaitsForOneToEnd) {
  LaneRoom room;
  std::optional<LaneRoom::Place> first(std::in_place, room, kGpu, 2U, never);
  const LaneRoom::Place second(room, kGpu, 2, never);
  std::atomic<bool> first_has_ended{false};
  std::thread third([&] {
    const LaneRoom::Place place(room, kGpu, 2, never);
    EXPECT_TRUE(place);
    EXPECT_TRUE(first_has_ended);
  });
  const LaneRoom::Place elsewhere(room, kOther, 1, never);
  EXPECT_TRUE(elsewhere) << "another GPU has memory of its own";
  first_has_ended = true;
  first.reset();
  third.join();
}

TEST(LaneRoom, WhoGivesUpWaitsForNobody) {
  LaneRoom room;
  const LaneRoom::Place only(room, kGpu, 1, never);
  std::atomic<bool> stopped{false};
  std::vector<std::thread> lanes;
  for (int i = 0; i < 3; ++i) {
    lanes.emplace_back([&] {
      const LaneRoom::Place place(room, kGpu, 1, [&stopped] { return stopped.load(); });
      EXPECT_FALSE(place);
    });
  }
  stopped = true;
  room.wake();
  for (std::thread& lane : lanes) lane.join();
}

TEST(LaneRoom, ManyLanesAreNeverMoreThanFit) {
  LaneRoom room;
  std::atomic<int> at_once{0};
  std::vector<std::thread> lanes;
  for (int i = 0; i < 16; ++i) {
    lanes.emplace_back([&] {
      for (int turn = 0; turn < 100; ++turn) {
        const LaneRoom::Place place(room, kGpu, 3, never);
        EXPECT_LE(++at_once, 3);
        --at_once;
      }
    });
  }
  for (std::thread& lane : lanes) lane.join();
}

}  // namespace
}  // namespace sluice::plugin
