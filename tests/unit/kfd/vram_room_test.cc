// SPDX-License-Identifier: MIT
// What sysfs says of VRAM in use, true and otherwise.
#include "kfd/vram_room.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "support/machines.h"

namespace sluice::kfd {
namespace {

class VramRoomTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(device_);
    say("mem_info_vram_total", "1000\n");
    say("mem_info_vram_used", "400\n");
  }

  void say(const std::string& name, const std::string& text) { write_text(device_ / name, text); }
  std::optional<VramUse> use() const { return vram_use(129, tree_.path().string()); }

  TempDir tree_;
  std::filesystem::path device_ = tree_.path() / "renderD129" / "device";
};

TEST_F(VramRoomTest, is_what_is_not_in_use) {
  const auto known = use();
  ASSERT_TRUE(known.has_value());
  EXPECT_EQ(known->total_bytes, 1000U);
  EXPECT_EQ(known->room(), 600U);
}

TEST_F(VramRoomTest, is_none_where_more_is_in_use_than_there_is) {
  say("mem_info_vram_used", "1001\n");
  ASSERT_TRUE(use().has_value());
  EXPECT_EQ(use()->room(), 0U);
}

TEST_F(VramRoomTest, is_not_known_without_the_files) {
  std::filesystem::remove(device_ / "mem_info_vram_used");
  EXPECT_FALSE(use().has_value());
  EXPECT_FALSE(vram_use(130, tree_.path().string()).has_value());
}

TEST_F(VramRoomTest, is_not_known_where_the_text_is_no_number) {
  for (const char* text : {"", "\n", "many\n", "-1\n", "12 \n", "18446744073709551616\n"}) {
    say("mem_info_vram_used", text);
    EXPECT_FALSE(use().has_value()) << text;
  }
}

TEST_F(VramRoomTest, of_a_partition_is_not_known_because_the_files_are_of_the_whole_card) {
  say("current_compute_partition", "CPX\n");
  EXPECT_FALSE(use().has_value());
  say("current_compute_partition", "SPX\n");
  EXPECT_TRUE(use().has_value());
}

TEST(KfdGpuWords, name_a_gpu_as_sysfs_and_lspci_do) {
  Node gpu = mi210(1, 0x978f, 129);
  gpu.domain = 1;
  gpu.location_id = 0xc1 << 8 | 3 << 3 | 2;
  EXPECT_EQ(pci_address(gpu), "0001:c1:03.2");
  EXPECT_EQ(gpu_words(gpu), "0x978f renderD129");
  EXPECT_EQ(size_words(1), "1 KiB");
  EXPECT_EQ(size_words(std::uint64_t{3} << 19), "1.5 MiB");
  EXPECT_EQ(size_words(std::uint64_t{3} << 29), "1.5 GiB");
}

}  // namespace
}  // namespace sluice::kfd
