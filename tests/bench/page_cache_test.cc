// SPDX-License-Identifier: MIT
// The page cache is seen and changed as asked for.
#include "measure/page_cache.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/units.h"
#include "support/temp_dir.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kBytes = 8 * kMiB;

TEST(PageCacheTest, DropsAndReadsIn) {
  const test::TempDir directory;
  const std::string file = directory.path() + "/file";
  std::ofstream(file) << std::string(kBytes, 'x');
  EXPECT_DOUBLE_EQ(cached_share(file).value(), 1);
  ASSERT_TRUE(drop_cached(file).ok());
  if (cached_share(file).value() == 1) GTEST_SKIP() << "a file system that keeps its files in memory";
  EXPECT_DOUBLE_EQ(cached_share(file).value(), 0);
  ASSERT_TRUE(read_in(file, kBytes / 2).ok());
  EXPECT_DOUBLE_EQ(cached_share(file).value(), 0.5);
  ASSERT_TRUE(read_in(file, kBytes).ok());
  EXPECT_DOUBLE_EQ(cached_share(file).value(), 1);
}

TEST(PageCacheTest, SaysWhatIsWrong) {
  EXPECT_EQ(cached_share("/nowhere/file").error().err, ENOENT);
  EXPECT_EQ(drop_cached("/nowhere/file").error().err, ENOENT);
  const test::TempDir directory;
  const std::string file = directory.path() + "/file";
  std::ofstream(file) << "short";
  EXPECT_FALSE(read_in(file, kBytes).ok());
}

}  // namespace
}  // namespace sluice::bench
