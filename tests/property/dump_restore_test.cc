// SPDX-License-Identifier: MIT
// Any BO list, chunk size and depth: the file is the serial writer's, its sums are those of its blocks or
// units, and reading it back gives the same BOs. Real files, both reactors, direct and buffered, with and
// without holes. Seeded; a failure names its seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/units.h"
#include "support/lane.h"
#include "support/rng.h"
#include "support/temp_dir.h"

namespace sluice {
namespace {

using test::BoList;
using test::Bytes;
using test::ReactorKind;
using test::Rng;

constexpr std::uint64_t kSeeds = 40;

// Sizes from nothing to several chunks, in GPU pages and not; contents with zero stretches.
BoList random_bos(Rng& rng, std::uint64_t chunk_bytes) {
  BoList bos;
  const std::uint64_t count = rng.percent(5) ? 0 : rng.percent(15) ? rng.between(50, 300) : rng.between(1, 8);
  const std::uint64_t most = count > 10 ? 20'000 : std::min<std::uint64_t>(3 * chunk_bytes, 2 * kMiB);
  const std::uint64_t granule = rng.percent(70) ? 4096 : 1;
  for (std::uint64_t i = 0; i < count; ++i) {
    Bytes bo(rng.percent(5) ? 0 : align_up(rng.between(1, most), granule));
    rng.fill(bo);
    if (rng.percent(50) && !bo.empty()) {
      const std::uint64_t begin = rng.between(0, bo.size() - 1);
      std::fill(bo.begin() + static_cast<long>(begin),
                bo.begin() + static_cast<long>(rng.between(begin, bo.size())), std::byte{0});
    }
    bos.push_back(std::move(bo));
  }
  return bos;
}

std::uint64_t random_chunk(Rng& rng) {
  constexpr std::array<std::uint64_t, 7> kChunks{16, 512, 4096, 16 * kKiB, 128 * kKiB, 512 * kKiB, 2 * kMiB};
  return kChunks[rng.between(0, kChunks.size() - 1)];
}

class DumpRestore : public ::testing::TestWithParam<std::tuple<ReactorKind, IoMode, bool>> {};

std::string case_name(const ::testing::TestParamInfo<DumpRestore::ParamType>& info) {
  const auto [kind, mode, holes] = info.param;
  return std::string(test::name_of(kind)) + (mode == IoMode::Uncached ? "_direct" : "_buffered") +
         (holes ? "_holes" : "_dense");
}

INSTANTIATE_TEST_SUITE_P(All, DumpRestore,
                         ::testing::Combine(::testing::Values(ReactorKind::Uring, ReactorKind::Threads),
                                            ::testing::Values(IoMode::Uncached, IoMode::Buffered),
                                            ::testing::Bool()),
                         case_name);

TEST_P(DumpRestore, SameFileAsTheSerialWriterAndBack) {
  const auto [kind, mode, holes] = GetParam();
  if (const std::string reason = test::unavailable(kind); !reason.empty()) GTEST_SKIP() << reason;
  const test::TempDir dir;
  test::TestWorld world(kind);
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const std::uint64_t chunk_bytes = random_chunk(rng);
    BoList bos = random_bos(rng, chunk_bytes);
    if (chunk_bytes == 16) {  // a chunk each two words: keep it small
      for (Bytes& bo : bos) bo.resize(std::min<std::size_t>(bo.size(), 200));
    }
    ImageLayout layout = std::move(ImageLayout::make(test::sizes_of(bos), chunk_bytes)).value();
    const auto lane = test::make_lane(layout, static_cast<std::uint32_t>(rng.between(1, 6)), world);
    const std::uint64_t block_bytes = chunk_bytes >> rng.between(0, 2);
    SumTable table = unit_tables(layout, block_bytes).front();
    const FileOptions options{mode, holes, seed % 10 == 0};
    const test::LaneRun run{*lane, &table, options, seed % 4 == 0 ? 2U : 0U};

    const auto dumped = test::dump_to(dir.fd(), test::kPagesName, bos, run);
    ASSERT_TRUE(dumped.ok()) << dumped.error().what;
    const Bytes expected = test::serial_file(bos);
    ASSERT_EQ(dumped->bytes, expected.size());
    ASSERT_EQ(dir.names(), std::vector<std::string>{test::kPagesName});
    ASSERT_TRUE(dir.read(test::kPagesName) == expected)
        << "chunk " << chunk_bytes << ", " << bos.size() << " BOs";
    ASSERT_EQ(table.sums, test::serial_sums(bos, block_bytes).sums);

    BoList restored;
    for (const Bytes& bo : bos) restored.emplace_back(bo.size(), std::byte{0x5a});
    const auto back = test::restore_from(dir.fd(), test::kPagesName, restored, run);
    ASSERT_TRUE(back.ok()) << back.error().what;
    ASSERT_TRUE(restored == bos);
  }
}

// A file of the serial writer (upstream's: no holes, no sums) restores as well.
TEST_P(DumpRestore, ReadsWhatTheSerialWriterWrote) {
  const auto [kind, mode, holes] = GetParam();
  if (const std::string reason = test::unavailable(kind); !reason.empty()) GTEST_SKIP() << reason;
  const test::TempDir dir;
  Rng rng(1000);
  BoList bos = random_bos(rng, 512 * kKiB);
  dir.write(test::kPagesName, test::serial_file(bos));
  BoList restored;
  for (const Bytes& bo : bos) restored.emplace_back(bo.size(), std::byte{0x5a});
  ImageLayout layout = std::move(ImageLayout::make(test::sizes_of(bos), 128 * kKiB)).value();
  test::TestWorld world(kind);
  const auto lane = test::make_lane(layout, 3, world);
  const test::LaneRun run{*lane, nullptr, {mode, holes, false}};
  const auto back = test::restore_from(dir.fd(), test::kPagesName, restored, run);
  ASSERT_TRUE(back.ok()) << back.error().what;
  EXPECT_TRUE(restored == bos);
}

}  // namespace
}  // namespace sluice
