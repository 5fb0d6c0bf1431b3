// SPDX-License-Identifier: MIT
// What BOs are filled with: the share of zeros is exact, the rest is not zero, the seed decides.
#include "engine/contents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "base/units.h"

namespace sluice::bench {
namespace {

std::vector<std::byte> filled(const Contents& contents) {
  std::vector<std::byte> memory(contents.total_bytes());
  fill(memory, contents);
  return memory;
}

// Runs of `run_bytes` that are all zero.
std::size_t zero_runs(const std::vector<std::byte>& memory, std::uint64_t run_bytes) {
  std::size_t runs = 0;
  for (std::size_t at = 0; at < memory.size(); at += run_bytes) {
    const auto end = memory.begin() + static_cast<std::ptrdiff_t>(std::min(memory.size(), at + run_bytes));
    runs += std::all_of(memory.begin() + static_cast<std::ptrdiff_t>(at), end,
                        [](std::byte byte) { return byte == std::byte{0}; })
                ? 1
                : 0;
  }
  return runs;
}

TEST(Contents, AddUpToTheirBos) {
  EXPECT_EQ((Contents{{4096, 8192, 16}}.total_bytes()), 12304U);
  EXPECT_EQ(Contents{}.total_bytes(), 0U);
}

class ZeroShare : public ::testing::TestWithParam<std::tuple<double, std::uint64_t>> {};

TEST_P(ZeroShare, IsExact) {
  const auto [share, run_bytes] = GetParam();
  constexpr std::uint64_t kRuns = 100;
  const Contents contents{{run_bytes * kRuns}, share, run_bytes};
  EXPECT_EQ(zero_runs(filled(contents), run_bytes), static_cast<std::size_t>(share * kRuns + 0.5));
}

INSTANTIATE_TEST_SUITE_P(Mixes, ZeroShare,
                         ::testing::Combine(::testing::Values(0.0, 0.25, 0.57, 0.75, 0.95, 1.0),
                                            ::testing::Values(4 * kKiB, 64 * kKiB)));

TEST(Contents, HaveALastRunThatIsShorter) {
  const Contents contents{{10 * kKiB}, 1, 4 * kKiB};
  EXPECT_EQ(zero_runs(filled(contents), 4 * kKiB), 3U);
}

TEST(Contents, AreTheSameForTheSameSeed) {
  const Contents contents{{kMiB, 4096}, 0.5, 4 * kKiB, 7};
  EXPECT_EQ(filled(contents), filled(contents));
}

TEST(Contents, AreOthersForAnotherSeed) {
  EXPECT_NE(filled({{kMiB}, 0.5, 4 * kKiB, 7}), filled({{kMiB}, 0.5, 4 * kKiB, 8}));
}

TEST(Contents, BeginLaterWhereBytesAreSkipped) {
  Contents later{{kMiB}};
  later.skipped_bytes = 64 * kKiB;
  const std::vector<std::byte> all = filled({{kMiB + 64 * kKiB}}), rest = filled(later);
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), all.begin() + 64 * kKiB));
}

TEST(Contents, AreKnownByTheirDigest) {
  std::vector<std::byte> memory = filled({{kMiB}});
  const Sum128 before = digest(memory);
  memory[kMiB / 2] ^= std::byte{1};
  EXPECT_NE(digest(memory), before);
}

// ---- what changes

std::uint64_t bytes_of(const std::vector<ContentRange>& ranges) {
  std::uint64_t sum = 0;
  for (const ContentRange& range : ranges) sum += range.bytes;
  return sum;
}

TEST(SomeRanges, AreTheShareInRunsAndApart) {
  for (const std::uint64_t run : {kMiB, 4 * kMiB, 64 * kMiB}) {
    SCOPED_TRACE(run);
    const std::vector<ContentRange> ranges = some_ranges(1000 * kMiB, 0.05, run, 3);
    EXPECT_EQ(bytes_of(ranges), 50 * kMiB);
    EXPECT_EQ(ranges.size(), div_ceil(50 * kMiB, run));
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      EXPECT_TRUE(is_aligned(ranges[i].begin, kChangeBytes));
      EXPECT_LE(ranges[i].begin + ranges[i].bytes, 1000 * kMiB);
      const std::uint64_t before = i > 0 ? ranges[i - 1].begin + ranges[i - 1].bytes : 0;
      EXPECT_LE(before, ranges[i].begin);
    }
  }
}

TEST(SomeRanges, AreNoneOrAllAtTheEnds) {
  EXPECT_TRUE(some_ranges(10 * kMiB, 0, kMiB, 1).empty());
  EXPECT_EQ(bytes_of(some_ranges(10 * kMiB + 8, 1, 64 * kMiB, 1)), 10 * kMiB + 8);
}

TEST(SomeRanges, AreOtherOnesForAnotherSeed) {
  const auto begin_of = [](std::uint64_t seed) {
    return some_ranges(1000 * kMiB, 0.001, kMiB, seed)[0].begin;
  };
  EXPECT_NE(begin_of(1), begin_of(2));
  EXPECT_EQ(begin_of(1), begin_of(1));
}

TEST(Change, TouchesEveryUnitOfTheRangesAndNothingElse) {
  const Contents contents{{4 * kMiB}};
  std::vector<std::byte> memory = filled(contents);
  const std::vector<std::byte> before = memory;
  const std::vector<ContentRange> ranges = {{kMiB, kMiB}};
  change(memory, ranges, 5);
  for (std::size_t at = 0; at < memory.size(); at += 64 * kKiB) {
    const bool same = std::memcmp(&memory[at], &before[at], 64 * kKiB) == 0;
    EXPECT_EQ(same, at < kMiB || at >= 2 * kMiB) << at;
  }
}

}  // namespace
}  // namespace sluice::bench
