// SPDX-License-Identifier: MIT
// Which lanes may follow which, from sizes alone.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "plugin/dump/plan/replicas.h"
#include "support/rng.h"

namespace sluice::plugin {
namespace {

constexpr std::uint32_t kNone = Leader::kNoBo;
using Bos = std::vector<std::uint32_t>;

PagesSet set_of(const std::vector<std::uint64_t>& sizes) {
  PagesSet set;
  for (const std::uint64_t bytes : sizes) set.bos.push_back({.bytes = bytes, .key = 0x1000 * set.bos.size()});
  return set;
}

Bos corresponding(const std::vector<std::uint64_t>& follower, const std::vector<std::uint64_t>& leader) {
  return corresponding_bos(set_of(follower), set_of(leader));
}

TEST(CorrespondingBos, AreTheNthOfTheirSize) {
  EXPECT_EQ(corresponding({1, 2, 1}, {1, 2, 1}), (Bos{0, 1, 2}));
  EXPECT_EQ(corresponding({1, 2, 1, 1}, {1, 2, 1}), (Bos{0, 1, 2, kNone}));
  EXPECT_EQ(corresponding({4, 1, 4}, {9, 4, 4}), (Bos{1, kNone, 2}));
  EXPECT_EQ(corresponding({1, 2}, {}), (Bos{kNone, kNone}));
  EXPECT_EQ(corresponding({}, {1}), Bos{});
}

// The leader has one BO more at its begin, or made two in another order.
TEST(CorrespondingBos, ThatWouldLeadBackAreLeftOut) {
  EXPECT_EQ(corresponding({1, 2, 3}, {7, 1, 2, 3}), (Bos{1, 2, 3}));
  EXPECT_EQ(corresponding({1, 2, 3, 4}, {4, 1, 2, 3}), (Bos{1, 2, 3, kNone}));
  EXPECT_EQ(corresponding({1, 2, 3, 4}, {2, 1, 3, 4}).at(2), 2U);
}

TEST(CorrespondingBos, AreAlwaysAscendingAndOfOneSize) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    test::Rng rng(seed);
    const auto random = [&rng] {
      std::vector<std::uint64_t> sizes(rng.between(0, 60));
      for (std::uint64_t& bytes : sizes) bytes = rng.between(1, 6);
      return sizes;
    };
    const std::vector<std::uint64_t> follower = random(), leader = random();
    const Bos bos = corresponding(follower, leader);
    ASSERT_EQ(bos.size(), follower.size());
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < bos.size(); ++i) {
      if (bos[i] == kNone) continue;
      ASSERT_GE(bos[i], next);
      next = bos[i] + 1;
      ASSERT_EQ(leader.at(bos[i]), follower[i]);
    }
    const Bos all = corresponding(leader, leader);
    for (std::uint32_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], i);
  }
}

std::vector<std::uint32_t> leaders_of(const LaneContents& lane) {
  std::vector<std::uint32_t> numbers;
  for (const PlannedLeader& leader : lane.leaders) numbers.push_back(leader.lane);
  return numbers;
}

LaneContents lane_of(const std::vector<std::uint64_t>& sizes) {
  LaneContents lane;
  lane.pages = set_of(sizes);
  return lane;
}

TEST(PlanReplicas, ALaneMayFollowThoseBeforeItInAnyFileTheNearestFirst) {
  std::vector<std::vector<LaneContents>> lanes(3);
  lanes[0].push_back(lane_of({kMiB}));
  lanes[0].push_back(lane_of({2 * kMiB}));
  lanes[2].push_back(lane_of({kMiB, 2 * kMiB}));
  plan_replicas(lanes);
  EXPECT_EQ(lanes[0][1].number, 1U);
  EXPECT_EQ(lanes[2][0].number, 2U);
  EXPECT_TRUE(lanes[0][0].leaders.empty());
  EXPECT_TRUE(lanes[0][1].leaders.empty());
  EXPECT_EQ(leaders_of(lanes[2][0]), (std::vector<std::uint32_t>{1, 0}));
}

TEST(PlanReplicas, LittleContentsAndRenderFilesHaveNoPartInIt) {
  std::vector<std::vector<LaneContents>> lanes(1);
  for (int i = 0; i < 2; ++i) lanes[0].push_back(lane_of({kLeastReplicaBytes / 2}));
  for (int i = 0; i < 2; ++i) {
    lanes[0].push_back(lane_of({kMiB}));
    lanes[0].back().pages.drm_minor = 128;
  }
  lanes[0].push_back(lane_of({kMiB}));
  plan_replicas(lanes);
  for (const LaneContents& lane : lanes[0]) EXPECT_TRUE(lane.leaders.empty()) << lane.number;
}

TEST(PlanReplicas, ALaneFollowsAFewAtMost) {
  std::vector<std::vector<LaneContents>> lanes(2 * kMostLeaders);
  for (auto& file : lanes) file.push_back(lane_of({kMiB}));
  plan_replicas(lanes);
  const LaneContents& last = lanes.back().front();
  ASSERT_EQ(last.leaders.size(), kMostLeaders);
  EXPECT_EQ(last.leaders.front().lane, last.number - 1);
}

}  // namespace
}  // namespace sluice::plugin
