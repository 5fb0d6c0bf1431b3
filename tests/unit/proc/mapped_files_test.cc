// SPDX-License-Identifier: MIT
// Looking at what a process maps. The process is the test itself, with a device and files of its own; a
// dma-buf, which needs a driver, is text in a made-up /proc.
#include "proc/mapped_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "support/machines.h"

namespace sluice::proc {
namespace {

using test::Folder;
using test::write_text;

std::vector<MappedFile> of_text(const std::string& maps) {
  const Folder proc;
  write_text(proc.path() / "7/maps", maps);
  auto files = mapped_files(7, proc.path().c_str());
  EXPECT_TRUE(files.ok());
  return files.ok() ? *files : std::vector<MappedFile>();
}

TEST(MappedFiles, each_file_once_anonymous_memory_never) {
  const auto files = of_text(
      "10000-11000 r-xp 00000000 fe:00 11                         /usr/bin/a program\n"
      "11000-12000 rw-p 00001000 fe:00 11                         /usr/bin/a program\n"
      "20000-21000 rw-p 00000000 00:00 0                          [heap]\n"
      "30000-31000 rw-s 00000000 00:0e 11                         /dmabuf:\n"
      "31000-32000 rw-s 00000000 00:0e 12                         /dmabuf:name\n"
      "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0    [vsyscall]\n");
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[0].address, 0x10000U);
  EXPECT_EQ(files[0].name, "/usr/bin/a program");
  EXPECT_FALSE(files[0].is_dma_buf());
  EXPECT_EQ(files[1].address, 0x30000U);
  EXPECT_TRUE(files[1].is_dma_buf());
  EXPECT_TRUE(files[2].is_dma_buf());
  EXPECT_EQ(files[2].name, "/dmabuf:name");
}

// Which devices can be mapped everywhere? The guest's scenarios show that one is told; here, that files are
// not taken for one.
TEST(MappedFiles, an_ordinary_file_is_no_device) {
  const auto files = mapped_files(::getpid());
  ASSERT_TRUE(files.ok()) << files.error().what;
  ASSERT_FALSE(files->empty());
  EXPECT_TRUE(std::none_of(files->begin(), files->end(),
                           [](const MappedFile& file) { return file.device.has_value(); }));
}

TEST(MappedFiles, maps_of_ordinary_files_are_no_maps_of_devices) {
  const auto maps = device_maps(::getpid());
  ASSERT_TRUE(maps.ok()) << maps.error().what;
  EXPECT_TRUE(maps->empty());
}

// What was read until then may lack the map that has to be seen.
TEST(MappedFiles, a_list_that_cannot_be_read_to_its_end_is_an_error) {
  const Folder proc;
  std::filesystem::create_directories(proc.path() / "7/maps");  // can be opened, and not read
  const auto files = mapped_files(7, proc.path().c_str());
  ASSERT_FALSE(files.ok());
  EXPECT_NE(files.error().what.find("7/maps"), std::string::npos) << files.error().what;
}

TEST(MappedFiles, a_device_that_cannot_be_asked_is_an_error) {
  const Folder proc;
  write_text(proc.path() / "7/maps", "10000-11000 rw-s 00000000 00:05 11    /dev/kfd\n");
  std::filesystem::create_directory(proc.path() / "7/map_files");
  EXPECT_EQ(device_maps(7, proc.path().c_str()).value().size(), 0U) << "unmapped meanwhile";
  std::filesystem::create_symlink("/dev/null/x", proc.path() / "7/map_files/10000-11000");
  EXPECT_EQ(device_maps(7, proc.path().c_str()).error().err, ENOTDIR);
}

TEST(MappedFiles, a_process_that_has_ended_maps_nothing) {
  const Folder proc;
  const auto files = mapped_files(7, proc.path().c_str());
  ASSERT_TRUE(files.ok());
  EXPECT_TRUE(files->empty());
}

}  // namespace
}  // namespace sluice::proc
