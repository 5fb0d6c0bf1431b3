// SPDX-License-Identifier: MIT
// What BOs are filled with: the share of zeros is exact, the rest is not zero, the seed decides.
#include "engine/contents.h"

#include <gtest/gtest.h>

#include <algorithm>
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

TEST(Contents, AreKnownByTheirDigest) {
  std::vector<std::byte> memory = filled({{kMiB}});
  const Sum128 before = digest(memory);
  memory[kMiB / 2] ^= std::byte{1};
  EXPECT_NE(digest(memory), before);
}

}  // namespace
}  // namespace sluice::bench
