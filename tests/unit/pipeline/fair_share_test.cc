// SPDX-License-Identifier: MIT
// Lanes on one disk: who leads is throttled, nobody is stopped, and who is slow elsewhere holds nobody up.
#include "pipeline/store/fair_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "support/rng.h"

namespace sluice {
namespace {

TEST(FairShare, ALaneAloneIsNeverThrottled) {
  FairShare disk;
  FairShare::Member only(&disk);
  FairShare::Member nobodys(nullptr);
  for (int chunk = 0; chunk < 100; ++chunk) {
    EXPECT_TRUE(only.begin());
    EXPECT_TRUE(nobodys.begin());
    if (chunk % 3 == 0) only.end();
  }
}

TEST(FairShare, ALaneKeepsBackWhatItHasBeenToldTo) {
  FairShare disk;
  FairShare::Member alone(nullptr, 0, 3);
  FairShare::Member sharing(&disk, 0, 3);
  FairShare::Member other(&disk);
  for (FairShare::Member* member : {&alone, &sharing}) {
    for (int chunk = 0; chunk < 3; ++chunk) EXPECT_TRUE(member->begin());
    EXPECT_FALSE(member->begin());
    member->end();
    EXPECT_TRUE(member->begin());
    EXPECT_FALSE(member->begin());
  }
  for (int chunk = 0; chunk < 4; ++chunk) EXPECT_TRUE(other.begin()) << "each has its own number";
}

TEST(FairShare, AQuarterOfTheSlotsIsKeptBackAndNeverAll) {
  EXPECT_EQ(most_on_disk(16), 12U);
  EXPECT_EQ(most_on_disk(4), 3U);
  EXPECT_EQ(most_on_disk(2), 2U);
  EXPECT_EQ(most_on_disk(1), 1U);
}

TEST(FairShare, ALeaderHasOneChunkOnTheDiskUntilTheOtherCatchesUp) {
  FairShare disk;
  FairShare::Member fast(&disk), slow(&disk);
  ASSERT_TRUE(slow.begin());
  for (int chunk = 0; chunk < 2; ++chunk) {
    EXPECT_TRUE(fast.begin());
    fast.end();
  }
  EXPECT_TRUE(fast.begin()) << "none there: never stopped";
  EXPECT_FALSE(fast.begin()) << "a second one is refused";
  EXPECT_TRUE(slow.begin()) << "the last one is not throttled";
  slow.end();
  EXPECT_TRUE(fast.begin());
}

TEST(FairShare, ALaneWithNothingOnTheDiskThrottlesNobodyAndSavesUpNothing) {
  FairShare disk;
  FairShare::Member busy(&disk), elsewhere(&disk);
  for (int chunk = 0; chunk < 50; ++chunk) {
    EXPECT_TRUE(busy.begin());
    EXPECT_TRUE(busy.begin());
    busy.end();
    busy.end();
  }
  ASSERT_TRUE(busy.begin());
  ASSERT_TRUE(elsewhere.begin()) << "it takes the position of the others";
  EXPECT_TRUE(busy.begin());
  elsewhere.end();
  EXPECT_TRUE(busy.begin());
}

TEST(FairShare, ALaterTurnTakesWhatAnEarlierOneLeaves) {
  FairShare disk;
  FairShare::Member later(&disk, 1), earlier(&disk, 0);
  for (int chunk = 0; chunk < 5; ++chunk) EXPECT_TRUE(later.begin()) << "there is no other";
  EXPECT_TRUE(earlier.begin());
  EXPECT_FALSE(later.begin());
  for (int chunk = 0; chunk < 50; ++chunk) {
    EXPECT_TRUE(earlier.begin()) << "however far it leads";
    earlier.end();
  }
  for (int chunk = 0; chunk < 5; ++chunk) later.end();
  EXPECT_TRUE(later.begin()) << "never stopped";
  EXPECT_FALSE(later.begin());
  earlier.end();
  EXPECT_TRUE(later.begin());
}

TEST(FairShare, WhoHasGoneIsNotWaitedFor) {
  FairShare disk;
  FairShare::Member stays(&disk);
  {
    FairShare::Member goes(&disk);
    ASSERT_TRUE(goes.begin());
    for (int chunk = 0; chunk < 3; ++chunk) {
      ASSERT_TRUE(stays.begin());
      stays.end();
    }
    ASSERT_TRUE(stays.begin());
    EXPECT_FALSE(stays.begin());
  }
  EXPECT_TRUE(stays.begin());
}

// A disk that serves any of the chunks it has, by chance, for lanes that are always ready: at no time does a
// lane lead another by more than the window and what it had on the disk.
TEST(FairShare, LanesKeepStepOnADiskThatServesByChance) {
  constexpr std::size_t kLanes = 16;
  constexpr int kDepth = 8;
  test::Rng rng(7);
  FairShare disk;
  std::deque<FairShare::Member> members;
  for (std::size_t i = 0; i < kLanes; ++i) members.emplace_back(&disk);
  std::vector<int> on_disk(kLanes), done(kLanes);
  for (int served = 0; served < 20'000; ++served) {
    std::vector<std::size_t> waiting;  // a lane as often as it has chunks there
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      while (on_disk[lane] < kDepth && members[lane].begin()) ++on_disk[lane];
      ASSERT_GT(on_disk[lane], 0) << "no lane is ever stopped";
      waiting.insert(waiting.end(), static_cast<std::size_t>(on_disk[lane]), lane);
    }
    const std::size_t lane = waiting[rng.between(0, waiting.size() - 1)];
    members[lane].end();
    --on_disk[lane];
    ++done[lane];
    const auto [least, most] = std::minmax_element(done.begin(), done.end());
    ASSERT_LE(*most - *least, 4 * kDepth) << "after " << served;
  }
}

}  // namespace
}  // namespace sluice
