// SPDX-License-Identifier: MIT
// The raw disk does what it says: bytes, fill states, files, whatever the file system has.
#include "measure/raw_disk.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/units.h"
#include "support/temp_dir.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kBlockBytes = 64 * kKiB;

std::unique_ptr<RawDisk> make(RawPlan plan) {
  auto disk = RawDisk::make(std::move(plan));
  EXPECT_TRUE(disk.ok());
  return std::move(*disk);
}

class RawDiskTest : public ::testing::Test {
 protected:
  std::filesystem::path file(const char* name = "raw") const {
    return std::filesystem::path(directory_.path()) / name;
  }
  test::TempDir directory_;
};

class RawDiskFillTest : public RawDiskTest, public ::testing::WithParamInterface<FillState> {};

TEST_P(RawDiskFillTest, WritesAndReadsAllItsBytesAgainAndAgain) {
  const auto disk = make({{file()}, 10 * kBlockBytes, kBlockBytes, 4, GetParam()});
  for (int i = 0; i < 2; ++i) {
    const auto wrote = disk->write();
    ASSERT_TRUE(wrote.ok()) << wrote.error().what;
    EXPECT_EQ(wrote->bytes, 10 * kBlockBytes);
    EXPECT_EQ(std::filesystem::file_size(file()), 10 * kBlockBytes);
    const auto read = disk->read();
    ASSERT_TRUE(read.ok()) << read.error().what;
    EXPECT_EQ(read->bytes, 10 * kBlockBytes);
    EXPECT_GT(read->seconds, 0);
  }
  disk->remove();
  EXPECT_TRUE(directory_.names().empty());
}

TEST_P(RawDiskFillTest, WritesNoHoles) {
  const auto disk = make({{file()}, 10 * kBlockBytes, kBlockBytes, 4, GetParam()});
  ASSERT_TRUE(disk->write().ok());
  std::ifstream in(file(), std::ios::binary);
  std::vector<char> block(4 * kKiB);
  while (in.read(block.data(), static_cast<std::streamsize>(block.size())))
    ASSERT_NE(block, std::vector<char>(block.size())) << in.tellg();
}

INSTANTIATE_TEST_SUITE_P(FillStates, RawDiskFillTest,
                         ::testing::Values(FillState::New, FillState::Allocated, FillState::Rewritten),
                         [](const auto& state) { return std::string(name_of(state.param)); });

TEST_F(RawDiskTest, IsANewFileEachTimeButWhereItIsRewritten) {
  const auto names_of_the_file = [&] { return std::filesystem::hard_link_count(file()); };
  const auto rewritten = make({{file()}, 4 * kBlockBytes, kBlockBytes, 2, FillState::Rewritten});
  ASSERT_TRUE(rewritten->write().ok());
  std::filesystem::create_hard_link(file(), file("other"));
  ASSERT_TRUE(rewritten->write().ok());
  EXPECT_EQ(names_of_the_file(), 2U);
  const auto fresh = make({{file()}, 4 * kBlockBytes, kBlockBytes, 2, FillState::New});
  ASSERT_TRUE(fresh->write().ok());
  EXPECT_EQ(names_of_the_file(), 1U);
}

TEST_F(RawDiskTest, RunsALaneForEachFile) {
  const auto disk = make({{file("a"), file("b"), file("c")}, 4 * kBlockBytes, kBlockBytes, 2});
  const auto wrote = disk->write();
  ASSERT_TRUE(wrote.ok());
  EXPECT_EQ(wrote->bytes, 12 * kBlockBytes);
  EXPECT_EQ(directory_.names(), (std::vector<std::string>{"a", "b", "c"}));
}

TEST_F(RawDiskTest, RoundsDownToBlocksButHasOne) {
  const auto some = make({{file()}, 3 * kBlockBytes - 1, kBlockBytes, 8});
  EXPECT_EQ(some->write()->bytes, 2 * kBlockBytes);
  const auto one = make({{file()}, 1, kBlockBytes, 8});
  EXPECT_EQ(one->write()->bytes, kBlockBytes);
}

TEST_F(RawDiskTest, WorksWithoutRegisteredBuffers) {
  const auto disk = make({{file()}, 8 * kBlockBytes, kBlockBytes, 4, FillState::New, false});
  EXPECT_EQ(disk->write()->bytes, 8 * kBlockBytes);
  EXPECT_EQ(disk->read()->bytes, 8 * kBlockBytes);
}

TEST_F(RawDiskTest, SaysThatAFileIsNotThere) {
  const auto disk = make({{file()}, kBlockBytes, kBlockBytes, 1});
  const auto read = disk->read();
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().err, ENOENT);
}

TEST_F(RawDiskTest, SaysThatAFileEndsTooEarly) {
  std::ofstream(file()) << std::string(kBlockBytes, 'x');
  const auto disk = make({{file()}, 4 * kBlockBytes, kBlockBytes, 2});
  EXPECT_FALSE(disk->read().ok());
}

// procfs has no O_DIRECT on any kernel; its files can be read.
TEST_F(RawDiskTest, ReadsThroughThePageCacheWhereThereIsNoDirectIo) {
  std::filesystem::create_symlink("/proc/self/maps", file());
  const auto disk = make({{file()}, 64, 64, 1});
  const auto read = disk->read();
  ASSERT_TRUE(read.ok()) << read.error().what;
  EXPECT_EQ(read->bytes, 64U);
  EXPECT_FALSE(disk->direct());
}

}  // namespace
}  // namespace sluice::bench
