// SPDX-License-Identifier: MIT
// A device node by its name, where somebody may have put something else.
#include "base/device_node.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "support/process_state.h"
#include "support/temp_dir.h"

namespace {

// What somebody does behind each look at a name (O_PATH).
std::function<void()> behind_a_look;

}  // namespace

extern "C" {
int __real_openat64(int directory, const char* path, int flags, ...);
int __wrap_openat64(int directory, const char* path, int flags, ...);
// The mode is for what is created, which open_device_node() does not do.
int __wrap_openat64(int directory, const char* path, int flags, ...) {
  const int fd = __real_openat64(directory, path, flags);
  if ((flags & O_PATH) != 0 && behind_a_look) behind_a_look();
  return fd;
}
}

namespace sluice {
namespace {

const dev_t kNull = makedev(1, 3), kZero = makedev(1, 5);

TEST(DeviceNode, IsOpenedForReadingAndWriting) {
  const auto null = open_device_node("/dev/null", kNull);
  ASSERT_TRUE(null.ok()) << null.error().what;
  EXPECT_EQ(::write(null->get(), "x", 1), 1);
  EXPECT_NE(::fcntl(null->get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(DeviceNode, IsFoundBehindALink) {
  const test::TempDir dir;
  const std::filesystem::path link = std::filesystem::path(dir.path()) / "link";
  std::filesystem::create_symlink("/dev/null", link);
  EXPECT_TRUE(open_device_node(link, kNull).ok());
}

TEST(DeviceNode, WhatIsNoneOrAnotherIsRefused) {
  const test::TempDir dir;
  const std::filesystem::path place(dir.path());
  std::ofstream(place / "file") << "somebody's";
  std::filesystem::create_symlink("file", place / "link");
  std::filesystem::create_symlink("/dev/zero", place / "other");
  std::filesystem::create_directory(place / "directory");
  ASSERT_EQ(::mkfifo((place / "fifo").c_str(), 0666), 0);
  const std::size_t before = test::open_fds();
  for (const char* name : {"file", "link", "other", "directory", "fifo"}) {
    const auto refused = open_device_node(place / name, kNull);
    ASSERT_FALSE(refused.ok()) << name;
    EXPECT_EQ(refused.error().err, ENODEV) << name;
    EXPECT_EQ(refused.error().what, (place / name).string() +
                                        " is not the device 1:3, nor a link to it; make the container's node "
                                        "anew with these numbers [SL-H01]");
  }
  EXPECT_EQ(test::open_fds(), before);
  EXPECT_TRUE(open_device_node(place / "other", kZero).ok());
}

TEST(DeviceNode, WhatTakesItsPlaceBetweenTwoLooksIsRefused) {
  const test::TempDir dir;
  const std::filesystem::path place(dir.path());
  std::ofstream(place / "file") << "somebody's";
  std::filesystem::create_symlink("/dev/null", place / "name");
  std::filesystem::create_symlink("file", place / "new");
  const std::size_t before = test::open_fds();
  behind_a_look = [&place] { std::filesystem::rename(place / "new", place / "name"); };
  const auto refused = open_device_node(place / "name", kNull);
  behind_a_look = nullptr;
  EXPECT_EQ(std::filesystem::read_symlink(place / "name"), "file");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().err, ENODEV);
  EXPECT_EQ(test::open_fds(), before);
}

TEST(DeviceNode, OneThatIsNotThereIsMissing) {
  EXPECT_EQ(open_device_node("/dev/nonexistent", kNull).error().err, ENOENT);
}

}  // namespace
}  // namespace sluice
