// SPDX-License-Identifier: MIT
// Whether a GPU that has lost its VRAM is found, whoever looked first.
#include "plugin/contents/vram_watch.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

namespace sluice::plugin {
namespace {

TEST(VramWatch, AGpuThatSaysSomethingElseThanAtFirstHasLostIt) {
  VramWatch watch;
  EXPECT_TRUE(watch.look(128, 3).ok());
  EXPECT_TRUE(watch.look(129, 4).ok());
  EXPECT_TRUE(watch.look(128, 3).ok());
  const auto lost = watch.look(128, 4);
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.error().err, EIO);
  EXPECT_NE(lost.error().what.find("renderD128 was reset"), std::string::npos) << lost.error().what;
  EXPECT_FALSE(watch.look(128, 4).ok()) << "for ever";
  EXPECT_TRUE(watch.look(129, 4).ok());
  EXPECT_EQ(watch.render_minors(), (std::vector<std::uint32_t>{128, 129}));
}

// That has never lost any, and that has begun again at 0.
TEST(VramWatch, ZeroIsANumberLikeOthers) {
  VramWatch watch;
  EXPECT_TRUE(watch.render_minors().empty());
  EXPECT_TRUE(watch.look(0, 0).ok());
  EXPECT_EQ(watch.render_minors(), std::vector<std::uint32_t>{0});
  EXPECT_FALSE(watch.look(0, UINT32_MAX).ok());
}

TEST(VramWatch, MoreGpusThanThereIsRoomForAreAnError) {
  VramWatch watch;
  for (std::uint32_t minor = 0; minor < kMostWatchedGpus; ++minor) ASSERT_TRUE(watch.look(minor, 0).ok());
  EXPECT_EQ(watch.look(kMostWatchedGpus, 0).error().err, E2BIG);
  EXPECT_TRUE(watch.look(0, 0).ok());
  EXPECT_EQ(watch.render_minors().size(), kMostWatchedGpus);
}

}  // namespace
}  // namespace sluice::plugin
