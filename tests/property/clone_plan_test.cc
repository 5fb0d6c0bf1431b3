// SPDX-License-Identifier: MIT
// What is cloned of a file whose bytes lie in several: with the rest written, it is the file. Any extents, as
// FICLONERANGE wants them. Seeded.
#include "flatten/clone_plan.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "base/units.h"
#include "support/clone_emulator.h"
#include "support/rng.h"
#include "support/temp_dir.h"

namespace sluice {
namespace {

using test::Bytes;
using test::Rng;

constexpr std::uint64_t kSeeds = 100;

TEST(ClonePlan, WithTheRestWrittenItIsTheFile) {
  const test::TempDir dir;
  std::uint64_t cloned = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const std::uint64_t block_bytes = std::uint64_t{512} << rng.between(0, 7);
    std::vector<Bytes> sources(2, Bytes(3 * kMiB + rng.between(0, 9000)));
    ExtentMap map;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const std::string name = "source" + std::to_string(i);
      rng.fill(sources[i]);
      dir.write(name, sources[i]);
      ASSERT_EQ(::fchmodat(dir.fd(), name.c_str(), 0600, 0), 0);
      map.files.push_back({dir.fd(), name, sources[i].size(), name, true});
    }
    Bytes expected;
    const std::uint64_t bytes = rng.percent(10) ? rng.between(9, 200'000) : rng.between(300'000, 2'500'000);
    while (expected.size() < bytes) {
      Extent extent{expected.size(), std::min(bytes, expected.size() + rng.between(1, 400'000)),
                    static_cast<std::uint32_t>(rng.between(0, 1)), 0};
      const std::uint64_t length = extent.end - extent.begin;
      extent.offset = rng.between(0, sources[extent.file].size() - length);
      if (rng.percent(70))
        extent.offset = align_down(extent.offset, block_bytes) + extent.begin % block_bytes;
      if (extent.offset + length > sources[extent.file].size()) extent.offset = extent.begin;
      const auto from = sources[extent.file].begin() + static_cast<long>(extent.offset);
      expected.insert(expected.end(), from, from + static_cast<long>(length));
      if (rng.percent(20)) {
        std::fill(expected.begin() + static_cast<long>(extent.begin), expected.end(), std::byte{0});
        extent.file = Extent::kZeros;
        extent.offset = 0;
      }
      map.extents.push_back(extent);
    }
    const bool second_can = rng.percent(80);
    const ClonePlan plan = plan_clones(map, block_bytes, {true, second_can});

    const UniqueFd target(::openat(dir.fd(), "new", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    ASSERT_EQ(::ftruncate(target.get(), static_cast<off_t>(bytes)), 0);
    test::CloneEmulator emulator(block_bytes);
    const auto done =
        clone_runs(target.get(), "new", plan.runs,
                   [&emulator](int from_fd, std::uint64_t from, std::uint64_t length, int to_fd,
                               std::uint64_t to) { return emulator(from_fd, from, length, to_fd, to); });
    ASSERT_TRUE(done.ok()) << done.error().what;
    EXPECT_EQ(emulator.bytes(), plan.bytes);
    for (std::size_t part = 0; part < plan.parts.size(); ++part) {
      const std::uint64_t begin = part * kZeroUnitBytes;
      const std::uint64_t length = std::min(kZeroUnitBytes, bytes - begin);
      const Extent& extent = map.at(begin);
      const bool can_be = bytes > kLargestUncloned && length == kZeroUnitBytes &&
                          extent.end >= begin + length && !extent.is_zeros() &&
                          (extent.file == 0 || second_can) &&
                          is_aligned(extent.offset + (begin - extent.begin), block_bytes);
      EXPECT_EQ(plan.parts[part], can_be) << part;
      if (plan.parts[part]) continue;
      ASSERT_EQ(::pwrite(target.get(), &expected[begin], length, static_cast<off_t>(begin)),
                static_cast<ssize_t>(length));
    }
    ASSERT_TRUE(dir.read("new") == expected);
    cloned += plan.bytes;
  }
  EXPECT_GT(cloned, 20 * kMiB);
}

}  // namespace
}  // namespace sluice
