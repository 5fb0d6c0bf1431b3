// SPDX-License-Identifier: MIT
// The subject's data can tell: a checker that finds nothing would make every other test pass.
#include "subject/pattern.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::subject {
namespace {

std::vector<std::uint8_t> filled(const Pattern& pattern) {
  std::vector<std::uint8_t> data(pattern.bytes, 0xa5);
  pattern.fill(data, 0);
  return data;
}

TEST(PatternTest, FilledDataIsRight) {
  for (const std::uint64_t bytes : {std::uint64_t{4096}, 68 * kKiB, 3 * kMiB + 4 * kKiB, 17 * kMiB}) {
    const Pattern pattern{7, bytes, 30};
    EXPECT_FALSE(pattern.first_difference(filled(pattern), 0).has_value()) << bytes;
  }
}

TEST(PatternTest, EveryFlippedByteIsFoundAtItsWord) {
  const Pattern pattern{7, 64 * kKiB, 50};
  std::vector<std::uint8_t> data = filled(pattern);
  for (std::size_t at = 0; at < data.size(); at += 509) {
    data[at] ^= 0x20;
    EXPECT_EQ(pattern.first_difference(data, 0), at / 8 * 8);
    data[at] ^= 0x20;
  }
}

TEST(PatternTest, DataOfAnotherPlaceOrSeedIsWrong) {
  const Pattern pattern{7, 64 * kKiB, 0};
  std::vector<std::uint8_t> data = filled(pattern);
  EXPECT_TRUE((Pattern{8, 64 * kKiB, 0}).first_difference(data, 0).has_value());
  // Shifted by one 64-bit word.
  EXPECT_TRUE(pattern.first_difference(std::span(data).subspan(8), 0).has_value());
  // Two units that changed places.
  std::swap_ranges(data.begin(), data.begin() + 4096, data.begin() + 8192);
  EXPECT_EQ(pattern.first_difference(data, 0), 0U);
}

TEST(PatternTest, WindowsGiveTheSameDataAsTheWhole) {
  const Pattern pattern{9, 3 * kMiB, 40};
  const std::vector<std::uint8_t> whole = filled(pattern);
  std::vector<std::uint8_t> pieces(whole.size());
  for (std::uint64_t at = 0; at < pieces.size(); at += 1000 * 8) {
    pattern.fill(std::span(pieces).subspan(at, std::min<std::uint64_t>(8000, pieces.size() - at)), at);
  }
  EXPECT_EQ(pieces, whole);
}

TEST(PatternTest, ZeroShareIsAboutWhatWasAsked) {
  EXPECT_EQ((Pattern{3, 64 * kMiB, 0}).zero_bytes(), 0U);
  EXPECT_EQ((Pattern{3, 64 * kMiB, 100}).zero_bytes(), 64 * kMiB);
  const std::uint64_t zero = Pattern{3, kGiB, 75}.zero_bytes();
  EXPECT_GT(zero, kGiB / 100 * 70);
  EXPECT_LT(zero, kGiB / 100 * 80);
}

TEST(PatternTest, DenseDataHasNoZeroWord) {
  const Pattern pattern{11, kMiB, 0};
  const std::vector<std::uint8_t> data = filled(pattern);
  const auto* words = reinterpret_cast<const std::uint64_t*>(data.data());
  EXPECT_EQ(std::count(words, words + data.size() / 8, 0U), 0);
}

}  // namespace
}  // namespace sluice::subject
