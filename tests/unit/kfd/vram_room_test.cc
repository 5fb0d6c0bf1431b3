// SPDX-License-Identifier: MIT
// What sysfs says of VRAM in use, true and otherwise.
#include "kfd/memory/vram_room.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <limits>
#include <string>

#include "base/units.h"
#include "support/machines.h"

namespace sluice::kfd {
namespace {

using test::Folder;
using test::mi210;
using test::write_text;

class VramRoomTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(device_);
    say("mem_info_vram_total", "1000\n");
    say("mem_info_vram_used", "400\n");
  }

  void say(const std::string& name, const std::string& text) { write_text(device_ / name, text); }
  std::optional<VramUse> use() const { return use_of(129); }
  std::optional<VramUse> use_of(std::uint32_t minor) const {
    return VramMeter(0, tree_.path().string()).use(mi210(1, 0x978f, minor));
  }

  Folder tree_;
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
  EXPECT_FALSE(use_of(130).has_value());
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

class GttRoomTest : public ::testing::Test {
 protected:
  GttRoomTest() {
    for (const std::uint32_t minor : kMinors) {
      std::filesystem::create_directories(device(minor));
      write_text(device(minor) / "mem_info_gtt_total", text_of(32 * kGiB));
      write_text(device(minor) / "mem_info_gtt_used", text_of(2 * kGiB));
    }
    say_ram(64 * kGiB, 60 * kGiB);
  }

  static std::string text_of(std::uint64_t bytes) { return std::to_string(bytes) + "\n"; }
  std::filesystem::path device(std::uint32_t minor) const {
    return tree_.path() / ("renderD" + std::to_string(minor)) / "device";
  }
  void say_ram(std::uint64_t total, std::uint64_t available) {
    write_text(meminfo_, "MemTotal:       " + std::to_string(total / kKiB) +
                             " kB\nMemFree:  1 kB\nMemAvailable: " + std::to_string(available / kKiB) +
                             " kB\n");
  }
  std::optional<std::uint64_t> room() const {
    return gtt_room(kMinors, {tree_.path().string(), meminfo_.string(), pages_.string()});
  }

  static constexpr std::array<std::uint32_t, 2> kMinors = {128, 129};
  Folder tree_;
  std::filesystem::path meminfo_ = tree_.path() / "meminfo", pages_ = tree_.path() / "pages_limit";
};

TEST_F(GttRoomTest, is_what_every_gpu_leaves) {
  EXPECT_EQ(room(), 30 * kGiB);
  write_text(device(129) / "mem_info_gtt_total", text_of(16 * kGiB));
  EXPECT_EQ(room(), 14 * kGiB);
}

TEST_F(GttRoomTest, is_what_all_gpus_together_leave_of_ttms_pages) {
  write_text(pages_, text_of(24 * kGiB / static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE))));
  EXPECT_EQ(room(), 20 * kGiB);
  write_text(pages_, text_of(std::numeric_limits<std::uint64_t>::max()));
  EXPECT_EQ(room(), 30 * kGiB);
}

TEST_F(GttRoomTest, ends_at_the_limit_of_the_kfd) {
  say_ram(64 * kGiB, 24 * kGiB);  // 40 GiB are in use, of 15/16
  EXPECT_EQ(room(), 20 * kGiB);
  say_ram(16 * kGiB, 16 * kGiB);  // the newer kernels' limit is the lower one
  EXPECT_EQ(room(), 16 * kGiB - 16 * kGiB / 64 - 3 * kGiB / 2);
  say_ram(2 * kGiB, 2 * kGiB);
  EXPECT_EQ(room(), (2 * kGiB - 2 * kGiB / 64) / 2);
  say_ram(64 * kGiB, 2 * kGiB);
  EXPECT_EQ(room(), 0U);
}

TEST_F(GttRoomTest, is_unknown_where_a_part_of_it_is) {
  write_text(device(129) / "current_compute_partition", "CPX\n");
  EXPECT_EQ(room(), std::nullopt);
  write_text(device(129) / "current_compute_partition", "SPX\n");
  EXPECT_EQ(room(), 30 * kGiB);
  std::filesystem::remove(device(128) / "mem_info_gtt_used");
  EXPECT_EQ(room(), std::nullopt);
  write_text(device(128) / "mem_info_gtt_used", text_of(0));
  for (const char* text : {"", "MemTotal:", "MemTotal: x kB\nMemAvailable: 1 kB\n", "MemTotal: 1 kB\n"}) {
    write_text(meminfo_, text);
    EXPECT_EQ(room(), std::nullopt) << text;
  }
  std::filesystem::remove(meminfo_);
  EXPECT_EQ(room(), std::nullopt);
}

}  // namespace
}  // namespace sluice::kfd
