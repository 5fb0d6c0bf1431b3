// SPDX-License-Identifier: MIT
// Which maps the host opens a file for, from the bytes of a task's memory image.
#include "plugin/host/vma_runs.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <vector>

#include "criu-mm.pb-c.h"
#include "support/temp_dir.h"
#include "support/unknown_fields.h"

namespace sluice::plugin {
namespace {

constexpr std::uint32_t kRegular = 1U << 0, kFilePrivate = 1U << 6, kFileShared = 1U << 7,
                        kAnonPrivate = 1U << 9, kMemfd = 1U << 14, kPlugin = 1U << 27;
constexpr std::uint32_t kDevice = kRegular | kFileShared | kPlugin;

struct Map {
  std::uint64_t start = 0;
  std::uint64_t file = 0;
  std::uint32_t status = kDevice;
  std::uint32_t flags = O_RDWR;
  std::uint64_t offset = 0;
};

std::vector<std::uint8_t> image_of(const std::vector<Map>& maps) {
  std::vector<VmaEntry> entries;
  for (const Map& map : maps) {
    VmaEntry entry = VMA_ENTRY__INIT;
    entry.start = map.start;
    entry.shmid = map.file;
    entry.pgoff = map.offset;
    entry.prot = PROT_READ | PROT_WRITE;
    entry.status = map.status;
    entry.has_fdflags = 1;
    entry.fdflags = map.flags;
    entries.push_back(entry);
  }
  std::vector<VmaEntry*> pointers;
  for (VmaEntry& entry : entries) pointers.push_back(&entry);
  MmEntry mm = MM_ENTRY__INIT;
  mm.n_vmas = pointers.size();
  mm.vmas = pointers.data();
  std::vector<std::uint8_t> bytes(12 + mm_entry__get_packed_size(&mm));
  const std::array<std::uint32_t, 3> header{0x54564319, 0x57492820,
                                            static_cast<std::uint32_t>(bytes.size() - 12)};
  std::memcpy(bytes.data(), header.data(), 12);
  (void)mm_entry__pack(&mm, &bytes[12]);
  return bytes;
}

VmaRuns runs_of(const std::vector<Map>& maps) {
  auto runs = VmaRuns::parse(image_of(maps));
  EXPECT_TRUE(runs.ok());
  return std::move(runs).value();
}

TEST(VmaRuns, OnlyTheFirstOfARunIsOpened) {
  const VmaRuns runs = runs_of({{1, 7}, {2, 7}, {3, 8}, {4, 7}});
  EXPECT_TRUE(runs.is_first(1));
  EXPECT_FALSE(runs.is_first(2));
  EXPECT_TRUE(runs.is_first(3));
  EXPECT_TRUE(runs.is_first(4));
}

TEST(VmaRuns, AMessageOfTinyPartsTakesBoundedMemory) {
  const auto parse = [](std::size_t fields) {
    std::vector<std::uint8_t> image = test::with_unknown_fields(image_of({{1, 7}}), fields);
    const auto length = static_cast<std::uint32_t>(image.size() - 12);
    std::memcpy(&image[8], &length, sizeof length);
    return VmaRuns::parse(image).ok();
  };
  EXPECT_TRUE(parse(test::kFieldsThatFit));
  EXPECT_FALSE(parse(test::kFieldsThatDoNot));
}

TEST(VmaRuns, OtherOpenFlagsBreakARun) {
  const VmaRuns runs = runs_of({{1, 7, kDevice, O_RDWR}, {2, 7, kDevice, O_RDONLY}});
  EXPECT_TRUE(runs.is_first(2));
}

// Memory and private files are restored elsewhere.
TEST(VmaRuns, WhatIsNoSharedFileBreaksNone) {
  const VmaRuns runs =
      runs_of({{1, 7}, {2, 0, kRegular | kAnonPrivate}, {3, 9, kRegular | kFilePrivate}, {4, 7}});
  EXPECT_FALSE(runs.is_first(4));
}

TEST(VmaRuns, ASharedFileThatNoPluginHasBreaksARun) {
  const VmaRuns runs = runs_of(
      {{1, 7}, {2, 9, kRegular | kFileShared}, {3, 7}, {4, 7, kRegular | kFileShared | kMemfd}, {5, 7}});
  EXPECT_TRUE(runs.is_first(3));
  EXPECT_TRUE(runs.is_first(5)) << "a memfd of that number is another file";
}

TEST(VmaRuns, TheLastIsTheLastOfAPlugin) {
  const VmaRuns runs = runs_of({{1, 7}, {2, 7}, {3, 9, kRegular | kFileShared}});
  EXPECT_FALSE(runs.is_last(1));
  EXPECT_TRUE(runs.is_last(2));
  EXPECT_FALSE(runs.is_last(3));
  EXPECT_FALSE(VmaRuns().is_last(0));
}

TEST(VmaRuns, TellsWhatIsMapped) {
  const VmaRuns runs =
      runs_of({{1, 7, kDevice, O_RDWR, 0x9000}, {2, 9, kRegular | kFileShared, O_RDWR, 0x20000}});
  EXPECT_TRUE(runs.maps(0x8000, 0x2000));
  EXPECT_TRUE(runs.maps(0x9000, 0x1000));
  EXPECT_FALSE(runs.maps(0x8000, 0x1000));
  EXPECT_FALSE(runs.maps(0x20000, 0x1000));
}

TEST(VmaRuns, TellsWhetherThereAreMaps) {
  EXPECT_FALSE(runs_of({{1, 7}}).none());
  EXPECT_TRUE(runs_of({{2, 9, kRegular | kFileShared}}).none());
  EXPECT_FALSE(VmaRuns::of(std::vector<PluginMap>{{1, 0x9000}}).none());
  EXPECT_FALSE(VmaRuns().none()) << "nothing is known";
}

TEST(VmaRuns, WhatIsNotKnownIsFirst) {
  EXPECT_TRUE(runs_of({{1, 7}}).is_first(77));
  EXPECT_TRUE(VmaRuns().is_first(1));
}

// Its image lies where others may write.
TEST(VmaRuns, OnlyARegularFileIsRead) {
  const test::TempDir dir;
  const std::vector<std::uint8_t> whole = image_of({{1, 7}});
  const auto* const begin = reinterpret_cast<const std::byte*>(whole.data());
  dir.write("mm-1.img", test::Bytes(begin, begin + whole.size()));
  EXPECT_TRUE(VmaRuns::read(dir.fd(), 1).ok());
  ASSERT_EQ(::symlinkat("mm-1.img", dir.fd(), "mm-2.img"), 0);
  ASSERT_EQ(::mkfifoat(dir.fd(), "mm-3.img", 0600), 0);
  EXPECT_EQ(VmaRuns::read(dir.fd(), 2).error().err, EINVAL);
  EXPECT_EQ(VmaRuns::read(dir.fd(), 3).error().err, EINVAL);
}

TEST(VmaRuns, DamagedImagesAreRefused) {
  const std::vector<std::uint8_t> whole = image_of({{1, 7}, {2, 7}});
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_EQ(VmaRuns::parse(std::span(whole).first(length)).error().err, EBADMSG) << length;
  for (const std::size_t at : {0U, 4U}) {
    std::vector<std::uint8_t> other = whole;
    other[at] ^= 1;
    EXPECT_EQ(VmaRuns::parse(other).error().err, EPROTONOSUPPORT);
  }
  for (std::size_t at = 12; at < whole.size(); ++at) {
    std::vector<std::uint8_t> other = whole;
    other[at] ^= 0x80;
    (void)VmaRuns::parse(other);  // says something, and reads nothing beyond its end
  }
}

}  // namespace
}  // namespace sluice::plugin
