// SPDX-License-Identifier: MIT
// SDMA packets, dword for dword, against values written out by hand from the generations' packet formats.
#include "drm/packets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/units.h"

namespace sluice::drm {
namespace {

using testing::ElementsAre;

constexpr std::uint32_t kAlignment = 64;  // dwords: 256 bytes, what the kernel asks for
constexpr std::uint32_t kUntouched = 0xDEADBEEF;

class Ib {
 public:
  explicit Ib(SdmaGeneration generation, std::size_t dwords = 4096,
              std::uint32_t segment_dwords_max = kIbDwordsMax)
      : memory_(dwords, kUntouched), builder_(generation, memory_, kAlignment, segment_dwords_max) {}

  IbBuilder& operator*() { return builder_; }
  IbBuilder* operator->() { return &builder_; }

  // The dwords of segment `index` after finish().
  std::vector<std::uint32_t> dwords(const IbSegment& segment) const {
    return {memory_.begin() + segment.offset, memory_.begin() + segment.offset + segment.dwords};
  }
  std::uint32_t at(std::size_t index) const { return memory_[index]; }

 private:
  std::vector<std::uint32_t> memory_;
  IbBuilder builder_;
};

class EveryGeneration : public testing::TestWithParam<SdmaGeneration> {};
INSTANTIATE_TEST_SUITE_P(Sdma, EveryGeneration,
                         testing::Values(SdmaGeneration::V3, SdmaGeneration::V4, SdmaGeneration::V5,
                                         SdmaGeneration::V6, SdmaGeneration::V7),
                         [](const auto& param) {
                           return std::string(1, 'V').append(
                               std::to_string(static_cast<int>(param.param) + 3));
                         });

// A count of bytes on SDMA 2.4 and 3, of bytes - 1 from SDMA 4 on.
std::uint32_t count_of(SdmaGeneration generation, std::uint32_t bytes) {
  return generation == SdmaGeneration::V3 ? bytes : bytes - 1;
}

TEST_P(EveryGeneration, LinearCopyIsSevenDwordsAndANop) {
  Ib ib(GetParam());
  ib->copy(0x0000'0001'2345'6008, 0x0000'7FFF'89AB'C000, 4096);
  const auto segments = ib->finish();
  ASSERT_THAT(segments, ElementsAre(IbSegment{0, 8}));
  EXPECT_THAT(ib.dwords(segments[0]), ElementsAre(0x00000001, count_of(GetParam(), 4096), 0, 0x23456008,
                                                  0x00000001, 0x89ABC000, 0x00007FFF, 0));
  EXPECT_EQ(ib.at(8), kUntouched);
}

TEST_P(EveryGeneration, ConstantFillIsFiveDwordsAndNops) {
  Ib ib(GetParam());
  ib->fill(0x0000'0001'2345'6008, 65536, 0);
  const auto segments = ib->finish();
  ASSERT_THAT(segments, ElementsAre(IbSegment{0, 8}));
  EXPECT_THAT(ib.dwords(segments[0]),
              ElementsAre(0x8000000B, 0x23456008, 0x00000001, 0, count_of(GetParam(), 65536), 0, 0, 0));
}

TEST_P(EveryGeneration, FillCarriesItsValue) {
  Ib ib(GetParam());
  ib->fill(0x1000, 4, 0xCAFEF00D);
  const auto segments = ib->finish();
  EXPECT_THAT(ib.dwords(segments[0]),
              ElementsAre(0x8000000B, 0x1000, 0, 0xCAFEF00D, count_of(GetParam(), 4), 0, 0, 0));
}

TEST_P(EveryGeneration, OneByteIsTheSmallestCopy) {
  Ib ib(GetParam());
  ib->copy(1, 2, 1);
  const auto segments = ib->finish();
  EXPECT_THAT(ib.dwords(segments[0]), ElementsAre(1, count_of(GetParam(), 1), 0, 1, 0, 2, 0, 0));
}

TEST_P(EveryGeneration, NoPacketExceedsItsLimitAndTheyTileTheRange) {
  const SdmaLimits& limits = sdma_limits(GetParam());
  const std::uint64_t source = 0x1'0000'0008;
  const std::uint64_t target = 0x3'FFFF'0000;  // the packets cross a 4 GiB boundary
  const std::uint64_t bytes = 3 * std::uint64_t{limits.copy_bytes_max} + 5;
  Ib ib(GetParam());
  ib->copy(source, target, bytes);
  const auto segments = ib->finish();
  const auto dwords = ib.dwords(segments[0]);
  EXPECT_EQ(copy_packets(GetParam(), bytes), 4U);
  EXPECT_EQ(ib->packets(), 4U);
  ASSERT_EQ(dwords.size(), ib_dwords_for(4, 0, kAlignment));
  std::uint64_t done = 0;
  for (std::size_t packet = 0; packet < 4; ++packet) {
    const std::uint32_t* at = &dwords[packet * kCopyDwords];
    const std::uint64_t moved = at[1] + (limits.count_is_bytes_minus_one ? 1ULL : 0ULL);
    EXPECT_LE(moved, limits.copy_bytes_max);
    EXPECT_EQ(at[0], 1U);
    EXPECT_EQ(at[2], 0U);
    EXPECT_EQ(at[3] | std::uint64_t{at[4]} << 32, source + done);
    EXPECT_EQ(at[5] | std::uint64_t{at[6]} << 32, target + done);
    done += moved;
  }
  EXPECT_EQ(done, bytes);
}

TEST_P(EveryGeneration, FillsAreSplitAtDwords) {
  const SdmaLimits& limits = sdma_limits(GetParam());
  EXPECT_EQ(limits.fill_bytes_max % 32, 0U);
  EXPECT_EQ(limits.copy_bytes_max % 32, 0U);
  const std::uint64_t bytes = std::uint64_t{limits.fill_bytes_max} + 4;
  Ib ib(GetParam());
  ib->fill(0x1000, bytes, 0);
  const auto segments = ib->finish();
  const auto dwords = ib.dwords(segments[0]);
  EXPECT_EQ(fill_packets(GetParam(), bytes), 2U);
  EXPECT_EQ(dwords[4], count_of(GetParam(), limits.fill_bytes_max));
  EXPECT_EQ(dwords[kFillDwords + 1], 0x1000 + limits.fill_bytes_max);
  EXPECT_EQ(dwords[kFillDwords + 4], count_of(GetParam(), 4));
}

TEST_P(EveryGeneration, PredictedSizeIsTheWrittenSize) {
  for (std::uint64_t copies = 0; copies < 20; ++copies) {
    for (std::uint64_t fills = 0; fills < 20; ++fills) {
      const std::uint64_t predicted = ib_dwords_for(copies, fills, kAlignment);
      Ib ib(GetParam(), predicted);
      for (std::uint64_t i = 0; i < copies; ++i) ib->copy(i, i, 1);
      for (std::uint64_t i = 0; i < fills; ++i) ib->fill(4 * i, 4, 0);
      const auto segments = ib->finish();
      ASSERT_EQ(segments.empty() ? 0 : segments[0].dwords, predicted)
          << copies << " copies, " << fills << " fills";
    }
  }
}

TEST(SdmaLimitsTest, WhatOnePacketMayCarry) {
  EXPECT_EQ(sdma_limits(SdmaGeneration::V3).copy_bytes_max, 0x1FFFE0U);
  EXPECT_FALSE(sdma_limits(SdmaGeneration::V3).count_is_bytes_minus_one);
  for (const auto generation :
       {SdmaGeneration::V4, SdmaGeneration::V5, SdmaGeneration::V6, SdmaGeneration::V7}) {
    EXPECT_EQ(sdma_limits(generation).copy_bytes_max, 4 * kMiB);
    EXPECT_EQ(sdma_limits(generation).fill_bytes_max, 0x3FFFE0U);
    EXPECT_TRUE(sdma_limits(generation).count_is_bytes_minus_one);
  }
}

TEST(SdmaLimitsTest, TheLargestCopyFitsTheCountField) {
  Ib ib(SdmaGeneration::V4);
  ib->copy(0, 0x1'0000'0000, 4 * kMiB);
  const auto segments = ib->finish();
  EXPECT_THAT(ib.dwords(segments[0]), ElementsAre(1, 0x3FFFFF, 0, 0, 0, 0, 1, 0));
}

TEST(IbBuilderTest, NothingAddedIsNoSegment) {
  Ib ib(SdmaGeneration::V4);
  ib->copy(0, 0, 0);
  ib->fill(0, 0, 0);
  EXPECT_TRUE(ib->finish().empty());
  EXPECT_EQ(ib.at(0), kUntouched);
}

TEST(IbBuilderTest, EightCopiesNeedNoPadding) {
  Ib ib(SdmaGeneration::V4);
  for (int i = 0; i < 8; ++i) ib->copy(0, 0, 1);
  EXPECT_THAT(ib->finish(), ElementsAre(IbSegment{0, 56}));
}

// Segments of 24 dwords hold three copies (21) and three NOPs; the next segment begins at the alignment.
TEST(IbBuilderTest, AFullSegmentIsPaddedAndTheNextOneAligned) {
  Ib ib(SdmaGeneration::V4, 512, 24);
  for (std::uint64_t i = 0; i < 7; ++i) ib->copy(0x100 + i, 0x200 + i, 1);
  const auto segments = ib->finish();
  ASSERT_THAT(segments, ElementsAre(IbSegment{0, 24}, IbSegment{64, 24}, IbSegment{128, 8}));
  for (const IbSegment& segment : segments) {
    for (std::uint32_t i = segment.dwords / kCopyDwords * kCopyDwords; i < segment.dwords; ++i) {
      EXPECT_EQ(ib.dwords(segment)[i], 0U);
    }
  }
  EXPECT_EQ(ib.dwords(segments[1])[3], 0x103U);
  EXPECT_EQ(ib.dwords(segments[2])[3], 0x106U);
  EXPECT_EQ(ib.at(24), kUntouched);
}

// Whatever the order of copies and fills, the predicted memory is enough.
TEST(IbBuilderTest, PredictionCoversEverySplit) {
  for (std::uint32_t segment_max = 8; segment_max <= 64; segment_max += 8) {
    for (std::uint64_t copies = 0; copies < 12; ++copies) {
      for (std::uint64_t fills = 0; fills < 12; ++fills) {
        const std::uint64_t predicted = ib_dwords_for(copies, fills, kAlignment, segment_max);
        Ib ib(SdmaGeneration::V4, predicted, segment_max);
        std::uint64_t copies_left = copies;
        std::uint64_t fills_left = fills;
        while (copies_left + fills_left > 0) {
          if (copies_left > 0) {
            ib->copy(0, 0, 1);
            --copies_left;
          }
          if (fills_left > 0) {
            ib->fill(0, 4, 0);
            --fills_left;
          }
        }
        std::uint64_t end = 0;
        for (const IbSegment& segment : ib->finish()) {
          EXPECT_LE(segment.dwords, segment_max);
          EXPECT_EQ(segment.dwords % kIbPaddingDwords, 0U);
          EXPECT_EQ(segment.offset % kAlignment, 0U);
          end = segment.offset + std::uint64_t{segment.dwords};
        }
        ASSERT_LE(end, predicted);
      }
    }
  }
}

TEST(IbBuilderTest, SegmentsStayBelowTheRingsSizeField) {
  EXPECT_LE(kIbDwordsMax, 0xFFFFFU);
}

struct FamilyCase {
  std::uint32_t family;
  std::uint32_t ip_major;
  SdmaGeneration generation;
};

TEST(SdmaGenerationTest, KnownFamiliesDecideAlone) {
  for (const auto& [family, ip_major, generation] : std::vector<FamilyCase>{{130, 2, SdmaGeneration::V3},
                                                                            {135, 3, SdmaGeneration::V3},
                                                                            {141, 4, SdmaGeneration::V4},
                                                                            {141, 0, SdmaGeneration::V4},
                                                                            {142, 4, SdmaGeneration::V4},
                                                                            {143, 5, SdmaGeneration::V5},
                                                                            {144, 5, SdmaGeneration::V5},
                                                                            {145, 6, SdmaGeneration::V6},
                                                                            {146, 5, SdmaGeneration::V5},
                                                                            {148, 6, SdmaGeneration::V6},
                                                                            {149, 5, SdmaGeneration::V5},
                                                                            {150, 6, SdmaGeneration::V6},
                                                                            {151, 5, SdmaGeneration::V5},
                                                                            {152, 7, SdmaGeneration::V7}}) {
    const auto found = sdma_generation(family, ip_major);
    ASSERT_TRUE(found.ok()) << family;
    EXPECT_EQ(*found, generation) << family;
  }
}

TEST(SdmaGenerationTest, NewFamiliesGoByTheirIpVersion) {
  for (std::uint32_t ip_major = 4; ip_major <= 7; ++ip_major) {
    const auto found = sdma_generation(160, ip_major);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(static_cast<std::uint32_t>(*found) + 3, ip_major);
  }
}

TEST(SdmaGenerationTest, OtherPacketsAreRefused) {
  for (const std::uint32_t family : {0U, 110U, 120U, 125U}) {
    const auto found = sdma_generation(family, 4);
    ASSERT_FALSE(found.ok()) << family;
    EXPECT_EQ(found.error().err, ENOTSUP);
  }
  EXPECT_FALSE(sdma_generation(160, 8).ok());
}

}  // namespace
}  // namespace sluice::drm
