// SPDX-License-Identifier: MIT
// Names and frame of image files: whole or not at all, and nothing believed when read.
#include "images/files/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "support/temp_dir.h"

namespace sluice {
namespace {

using test::Bytes;
using test::TempDir;

const std::vector<std::uint8_t> kPayload = {1, 2, 3};

TEST(ImageNames, AreUpstreams) {
  EXPECT_EQ(kfd_image_name(7), "amdgpu-kfd-7.img");
  EXPECT_EQ(pages_image_name(7, 0x5759), "amdgpu-pages-7-5759.img");
  EXPECT_EQ(pages_image_name(7, 0xab), "amdgpu-pages-7-00ab.img");
  EXPECT_EQ(render_image_name(8), "amdgpu-renderD-8.img");
  EXPECT_EQ(sums_image_name(7, 0x5759), "amdgpu-sums-7-5759.img");
}

TEST(WriteImage, FramesPayloadAndLeavesNoTemporaryFile) {
  const TempDir dir;
  ASSERT_TRUE(write_image(dir.fd(), "a.img", kPayload, true).ok());
  EXPECT_EQ(dir.names(), std::vector<std::string>{"a.img"});
  const Bytes bytes = dir.read("a.img");
  ASSERT_EQ(bytes.size(), 11U);
  EXPECT_EQ(bytes[0], std::byte{3});
  EXPECT_EQ(bytes[8], std::byte{1});
  struct stat st {};
  ASSERT_EQ(fstatat(dir.fd(), "a.img", &st, 0), 0);
  EXPECT_EQ(st.st_mode & 07777U, 0600U);  // GPU memory is private
}

TEST(WriteImage, ReplacesWhatWasThereAndAStaleTemporaryFile) {
  const TempDir dir;
  dir.write("a.img", Bytes(100));
  dir.write("a.img.tmp", Bytes(100));
  ASSERT_TRUE(write_image(dir.fd(), "a.img", kPayload, false).ok());
  EXPECT_EQ(dir.names(), std::vector<std::string>{"a.img"});
  EXPECT_EQ(dir.read("a.img").size(), 11U);
}

TEST(WriteImage, FailureNamesTheFileAndLeavesNothing) {
  const TempDir dir;
  ASSERT_EQ(mkdirat(dir.fd(), "a.img", 0700), 0);  // what rename cannot replace
  const Result<void> written = write_image(dir.fd(), "a.img", kPayload, false);
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().err, EISDIR);
  EXPECT_NE(written.error().what.find("a.img"), std::string::npos);
  EXPECT_EQ(dir.names(), std::vector<std::string>{"a.img"});
}

TEST(ReadImage, GivesThePayloadBack) {
  const TempDir dir;
  ASSERT_TRUE(write_image(dir.fd(), "a.img", kPayload, false).ok());
  const auto payload = read_image(dir.fd(), "a.img");
  ASSERT_TRUE(payload.ok());
  EXPECT_EQ(*payload, kPayload);
}

TEST(ReadImage, RefusesWhatDisagreesWithItsLength) {
  const TempDir dir;
  EXPECT_EQ(read_image(dir.fd(), "none").error().err, ENOENT);
  dir.write("short", Bytes(7));
  EXPECT_EQ(read_image(dir.fd(), "short").error().err, EBADMSG);
  ASSERT_TRUE(write_image(dir.fd(), "a.img", kPayload, false).ok());
  Bytes cut = dir.read("a.img");
  cut.pop_back();
  dir.write("cut", cut);
  EXPECT_EQ(read_image(dir.fd(), "cut").error().err, EBADMSG);
  cut.resize(20);
  dir.write("long", cut);
  EXPECT_EQ(read_image(dir.fd(), "long").error().err, EBADMSG);
  Bytes huge(16, std::byte{0xff});
  dir.write("huge", huge);
  EXPECT_EQ(read_image(dir.fd(), "huge").error().err, EBADMSG);
}

// Whoever may write into the directory gets nothing written elsewhere, and nothing from elsewhere read.
TEST(WriteImage, ReplacesALinkAndLeavesItsTargetAlone) {
  const TempDir dir;
  const Bytes precious(100, std::byte{7});
  dir.write("precious", precious);
  for (const char* name : {"a.img", "a.img.tmp"}) {
    ASSERT_EQ(symlinkat("precious", dir.fd(), name), 0);
    ASSERT_TRUE(write_image(dir.fd(), "a.img", kPayload, false).ok());
    EXPECT_EQ(dir.read("precious"), precious);
    EXPECT_EQ(*read_image(dir.fd(), "a.img"), kPayload);
    EXPECT_EQ(dir.names(), (std::vector<std::string>{"a.img", "precious"}));
  }
}

TEST(ReadImage, FollowsNoLinkAndWaitsForNobody) {
  const TempDir dir;
  ASSERT_TRUE(write_image(dir.fd(), "a.img", kPayload, false).ok());
  ASSERT_EQ(symlinkat("a.img", dir.fd(), "link.img"), 0);
  ASSERT_EQ(mkfifoat(dir.fd(), "fifo.img", 0600), 0);
  ASSERT_EQ(mkdirat(dir.fd(), "directory.img", 0700), 0);
  for (const char* name : {"link.img", "fifo.img", "directory.img"})
    EXPECT_EQ(read_image(dir.fd(), name).error().err, EINVAL) << name;
}

TEST(ReadImage, RefusesAHugeFileAtOnce) {
  const TempDir dir;
  dir.write("a.img", Bytes(8));
  if (truncate((dir.path() + "/a.img").c_str(), off_t{1} << 40) != 0) GTEST_SKIP() << "no file of 1 TiB here";
  EXPECT_EQ(read_image(dir.fd(), "a.img").error().err, EFBIG);
}

// Nobody could read it again.
TEST(WriteImage, RefusesWhatIsLargerThanAnImageThatIsRead) {
  const test::TempDir dir;
  const UniqueFd fd(open(dir.path().c_str(), O_RDONLY | O_DIRECTORY));
  void* const zeros =
      mmap(nullptr, kLargestImageBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(zeros, MAP_FAILED);
  const std::span payload(static_cast<const std::uint8_t*>(zeros), kLargestImageBytes);
  const auto written = write_image(fd.get(), "a.img", payload, false);
  EXPECT_EQ(munmap(zeros, kLargestImageBytes), 0);
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().err, EOVERFLOW);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(RemovePluginImages, TakesOnlyThePlugins) {
  const TempDir dir;
  for (const char* name :
       {"amdgpu-kfd-1.img", "amdgpu-pages-1-5759.img", "amdgpu-pages-1-5759.img.tmp",
        "amdgpu-pages-unnamed0-5759.img.tmp", "amdgpu-sums-1-5759.img", "sluice-stats-dump-1.json",
        "sluice-trace-dump-1.json", "pages-1.img", "inventory.img", "amdgpu-notes.txt"}) {
    dir.write(name, Bytes(8));
  }
  const auto kept = remove_plugin_images(dir.fd(), true);
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(*kept, std::vector<std::string>{"amdgpu-pages-1-5759.img"});
  EXPECT_EQ(dir.names(), (std::vector<std::string>{"amdgpu-notes.txt", "amdgpu-pages-1-5759.img",
                                                   "inventory.img", "pages-1.img"}));
  ASSERT_TRUE(remove_plugin_images(dir.fd(), false).ok());
  EXPECT_EQ(dir.names(), (std::vector<std::string>{"amdgpu-notes.txt", "inventory.img", "pages-1.img"}));
}

TEST(RemovePluginImages, LeavesAllWhereKfdsMetadataStays) {
  const TempDir dir;
  ASSERT_EQ(mkdirat(dir.fd(), "amdgpu-kfd-1.img", 0700), 0);
  for (const char* name : {"amdgpu-dmabuf-3.img", "amdgpu-pages-1-5759.img", "amdgpu-renderD-2.img"})
    dir.write(name, Bytes(8));
  EXPECT_EQ(remove_plugin_images(dir.fd(), false).error().err, EISDIR);
  EXPECT_EQ(dir.names().size(), 4U);
}

TEST(RemovePluginImages, LeavesNothingElseWhereOtherMetadataStays) {
  for (const bool keep_pages : {false, true}) {
    const TempDir dir;
    ASSERT_EQ(mkdirat(dir.fd(), "amdgpu-kfd-2.img", 0700), 0);
    for (const char* name : {"amdgpu-kfd-1.img", "amdgpu-kfd-3.img", "amdgpu-pages-2-5759.img"})
      dir.write(name, Bytes(8));
    EXPECT_EQ(remove_plugin_images(dir.fd(), keep_pages).error().err, EISDIR);
    EXPECT_EQ(dir.names(), std::vector<std::string>{"amdgpu-kfd-2.img"});
  }
}

// A chain's metadata are metadata, too: they go first.
TEST(RemovePluginImages, LeavesAllWhereMetadataOfAChainStays) {
  const TempDir dir;
  ASSERT_EQ(mkdirat(dir.fd(), "amdgpu-delta-kfd-2.img", 0700), 0);
  for (const char* name : {"amdgpu-delta-2-5759.img", "amdgpu-delta-renderD-1.img", "amdgpu-sums-2-5759.img"})
    dir.write(name, Bytes(8));
  EXPECT_EQ(remove_plugin_images(dir.fd(), false).error().err, EISDIR);
  EXPECT_EQ(dir.names().size(), 4U);
}

TEST(ChainNames, AreOfMetadataOnlyAndLeadBack) {
  EXPECT_EQ(partial_name(kfd_image_name(7), Lacks::Parents), "amdgpu-delta-kfd-7.img");
  EXPECT_EQ(partial_name(render_image_name(8), Lacks::Parents), "amdgpu-delta-renderD-8.img");
  EXPECT_EQ(complete_name("amdgpu-delta-kfd-7.img"), kfd_image_name(7));
  EXPECT_EQ(complete_name("amdgpu-delta-renderD-8.img"), render_image_name(8));
  for (const char* other : {"amdgpu-kfd-7.img", "amdgpu-delta-7-5759.img", "amdgpu-delta-drm-7-128-0000.img",
                            "amdgpu-delta-dmabuf_7.img"}) {
    EXPECT_EQ(complete_name(other), std::nullopt) << other;
    EXPECT_EQ(is_metadata(other), other == std::string("amdgpu-kfd-7.img")) << other;
  }
  EXPECT_TRUE(is_metadata("amdgpu-delta-kfd-7.img"));
  EXPECT_TRUE(contents_among({"amdgpu-delta-kfd-7.img", "amdgpu-delta-renderD-8.img"}).empty());
}

TEST(PagesImageNames, EndAlikeForOneGpu) {
  EXPECT_EQ(unnamed_pages_image(3, 0x5759), "amdgpu-pages-unnamed3-5759.img");
  for (const std::string& name : {unnamed_pages_image(3, 0x5759), pages_image_name(12, 0x5759)}) {
    EXPECT_TRUE(name.ends_with(pages_image_ending(0x5759)));
    EXPECT_FALSE(name.ends_with(pages_image_ending(0x759)));
  }
}

// Names that nobody who dumps would make: they are not read, and no message has them.
TEST(ListImages, OnlyWhatIsCalledExactlySo) {
  const TempDir dir;
  for (const char* name :
       {"amdgpu-kfd-1.img", "amdgpu-kfd-01.img", "amdgpu-kfd--1.img", "amdgpu-kfd-.img", "amdgpu-kfd-x2.img",
        "amdgpu-kfd-99999999999.img", "amdgpu-kfd-..3.img", "amdgpu-kfd-\n\x1b[31m4.img",
        "sluice-stats-dump-1.json", "sluice-stats-\x1b[2J.json", "sluice-stats-dump-1x.json"}) {
    dir.write(name, Bytes(8));
  }
  EXPECT_EQ(*list_kfd_images(dir.fd()), std::vector<std::string>{"amdgpu-kfd-1.img"});
  auto stats = list_names(dir.fd()).value();
  keep_stats(stats);
  EXPECT_EQ(stats, std::vector<std::string>{"sluice-stats-dump-1.json"});
  std::vector<std::string> of_a_stream = {"amdgpu-kfd-../../etc/passwd1.img", "/amdgpu-kfd-1.img",
                                          "amdgpu-kfd-7.img", "amdgpu-renderD-7.img"};
  keep_images(of_a_stream, kKfdPrefix);
  EXPECT_EQ(of_a_stream, std::vector<std::string>{"amdgpu-kfd-7.img"});
}

TEST(ListKfdImages, IsSortedAndComplete) {
  const TempDir dir;
  for (const char* name : {"amdgpu-kfd-2.img", "amdgpu-kfd-1.img", "amdgpu-kfd-3.img.tmp",
                           "amdgpu-pages-1-1.img", "amdgpu-delta-kfd-4.img", "amdgpu-delta-renderD-5.img"}) {
    dir.write(name, Bytes(8));
  }
  const auto names = list_kfd_images(dir.fd());
  ASSERT_TRUE(names.ok());
  EXPECT_EQ(*names,
            (std::vector<std::string>{"amdgpu-delta-kfd-4.img", "amdgpu-kfd-1.img", "amdgpu-kfd-2.img"}));
}

}  // namespace
}  // namespace sluice
