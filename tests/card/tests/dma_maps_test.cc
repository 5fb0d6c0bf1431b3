// SPDX-License-Identifier: MIT
// What is mapped where, and what may not be.
#include "bus/dma_maps.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "bus_kit.h"

namespace sluice::card::tests {
namespace {

int error_of(const Result<void>& result) {
  return result ? 0 : result.error().err;
}
int error_of(const Result<std::uint64_t>& result) {
  return result ? 0 : result.error().err;
}

class DmaMapsTest : public testing::Test {
 protected:
  int add(std::uint64_t address, std::uint64_t bytes) {
    return error_of(maps_.add({address, bytes}, file_, 0, true));
  }

  UniqueFd file_ = memory_file(0x10000);
  DmaMaps maps_;
};

TEST_F(DmaMapsTest, BytesAreThoseOfOneMapOrNone) {
  ASSERT_EQ(add(0x10000, 0x2000), 0);
  ASSERT_EQ(add(0x12000, 0x1000), 0) << "right behind";
  EXPECT_EQ(maps_.at(0x10000, 0x2000).size(), 0x2000U);
  EXPECT_EQ(maps_.at(0x11fff, 1).size(), 1U);
  EXPECT_EQ(maps_.at(0x12fff, 1).size(), 1U);
  EXPECT_TRUE(maps_.at(0x11fff, 2).empty()) << "into the next map";
  EXPECT_TRUE(maps_.at(0x13000, 1).empty());
  EXPECT_TRUE(maps_.at(0xffff, 1).empty());
  EXPECT_TRUE(maps_.at(0, 1).empty());
  EXPECT_TRUE(maps_.at(~std::uint64_t{0}, 1).empty());
  EXPECT_TRUE(maps_.at(0x10000, ~std::size_t{0}).empty());
}

TEST_F(DmaMapsTest, MapsDoNotOverlap) {
  ASSERT_EQ(add(0x10000, 0x4000), 0);
  EXPECT_EQ(add(0x10000, 0x4000), EEXIST);
  EXPECT_EQ(add(0xf000, 0x2000), EEXIST);
  EXPECT_EQ(add(0x13000, 0x2000), EEXIST);
  EXPECT_EQ(add(0x11000, 0x1000), EEXIST);
  EXPECT_EQ(add(0xf000, 0x8000), EEXIST);
  EXPECT_EQ(add(0xf000, 0x1000), 0);
  EXPECT_EQ(add(0x14000, 0x1000), 0);
  EXPECT_EQ(maps_.count(), 3U);
}

TEST_F(DmaMapsTest, OnlyWholePagesThatEndAreMapped) {
  EXPECT_EQ(add(0x10000, 0), EINVAL);
  EXPECT_EQ(add(0x10800, 0x1000), EINVAL);
  EXPECT_EQ(add(0x10000, 0x800), EINVAL);
  EXPECT_EQ(add(~std::uint64_t{0xfff}, 0x2000), EINVAL) << "around the end";
  EXPECT_EQ(error_of(maps_.remove({0x10000, 0})), EINVAL);
  EXPECT_EQ(error_of(maps_.remove({~std::uint64_t{0xfff}, 0x2000})), EINVAL);
}

TEST_F(DmaMapsTest, UnmapTakesWholeMapsOrNothing) {
  for (const std::uint64_t at : {0x10000, 0x14000, 0x20000}) ASSERT_EQ(add(at, 0x2000), 0);
  EXPECT_EQ(error_of(maps_.remove({0x10000, 0x1000})), EINVAL) << "its end would stay";
  EXPECT_EQ(error_of(maps_.remove({0x11000, 0x1000})), EINVAL) << "its begin would stay";
  EXPECT_EQ(error_of(maps_.remove({0x10000, 0x5000})), EINVAL) << "a part of the second";
  EXPECT_EQ(maps_.count(), 3U);
  const Result<std::uint64_t> taken = maps_.remove({0xf000, 0x8000});
  ASSERT_TRUE(taken);
  EXPECT_EQ(*taken, 0x4000U);
  EXPECT_EQ(maps_.count(), 1U);
  EXPECT_TRUE(maps_.at(0x10000, 1).empty());
  EXPECT_FALSE(maps_.at(0x20000, 1).empty());
  const Result<std::uint64_t> nothing = maps_.remove({0x10000, 0x1000});
  ASSERT_TRUE(nothing);
  EXPECT_EQ(*nothing, 0U);
}

TEST_F(DmaMapsTest, MapWithoutAFileOrForReadingIsKnownAndHasNoBytes) {
  ASSERT_TRUE(maps_.add({0x10000, 0x1000}, UniqueFd(), 0, true));
  ASSERT_TRUE(maps_.add({0x11000, 0x1000}, file_, 0, false));
  EXPECT_TRUE(maps_.at(0x10000, 1).empty());
  EXPECT_TRUE(maps_.at(0x11000, 1).empty());
  EXPECT_EQ(add(0x10000, 0x1000), EEXIST);
  EXPECT_EQ(add(0x11000, 0x1000), EEXIST);
  EXPECT_EQ(*maps_.remove({0x10000, 0x2000}), 0x2000U);
}

}  // namespace
}  // namespace sluice::card::tests
