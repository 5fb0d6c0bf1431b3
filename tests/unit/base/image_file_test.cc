// SPDX-License-Identifier: MIT
// A directory in which somebody else has put things under the names of images: none is followed, none is
// waited for, none is written to.
#include "base/image_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "support/temp_dir.h"

namespace sluice {
namespace {

using test::Bytes;
using test::TempDir;

const Bytes kPrecious(100, std::byte{7});

// What may stand under a name that is no regular file. "file" has kPrecious.
struct HostileDir : TempDir {
  HostileDir() {
    write("file", kPrecious);
    EXPECT_EQ(::symlinkat("file", fd(), "link"), 0);
    EXPECT_EQ(::symlinkat("nothing", fd(), "dangling"), 0);
    EXPECT_EQ(::mkfifoat(fd(), "fifo", 0600), 0);
    EXPECT_EQ(::mkdirat(fd(), "directory", 0700), 0);
    EXPECT_EQ(::linkat(fd(), "file", fd(), "second", 0), 0);
  }

  struct stat status_of(const char* name) const {
    struct stat status {};
    EXPECT_EQ(::fstatat(fd(), name, &status, AT_SYMLINK_NOFOLLOW), 0);
    return status;
  }
};

TEST(ImageFile, OnlyARegularFileIsOpened) {
  const HostileDir dir;
  for (const char* name : {"link", "dangling", "fifo", "directory"}) {
    const auto opened = open_image_file(dir.fd(), name);
    ASSERT_FALSE(opened.ok()) << name;
    EXPECT_EQ(opened.error().err, EINVAL) << name;
    EXPECT_EQ(opened.error().what,
              std::string(name) + " is not a regular file; move it out of the image directory [SL-I01]");
  }
  EXPECT_EQ(open_image_file(dir.fd(), "nothing").error().err, ENOENT);
  const auto opened = open_image_file(dir.fd(), "file");
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->status.st_size, 100);
  EXPECT_EQ(::fcntl(opened->fd.get(), F_GETFL) & O_NONBLOCK, 0) << "io_uring would answer EAGAIN";
}

TEST(ImageFile, ANewOneIsNeverWhatHadTheName) {
  const HostileDir dir;
  for (const char* name : {"link", "dangling", "fifo", "second", "new"}) {
    const auto made = create_image_file(dir.fd(), name);
    ASSERT_TRUE(made.ok()) << made.error().what;
    ASSERT_EQ(::write(made->get(), "x", 1), 1);
    const struct stat status = dir.status_of(name);
    EXPECT_TRUE(S_ISREG(status.st_mode)) << name;
    EXPECT_EQ(status.st_nlink, 1U) << name;
  }
  EXPECT_EQ(dir.read("file"), kPrecious);
  EXPECT_FALSE(dir.exists("nothing"));
  EXPECT_EQ(create_image_file(dir.fd(), "directory").error().err, EISDIR);
}

TEST(ImageFile, ANewOneIsPrivateWhateverTheUmask) {
  const TempDir dir;
  for (const mode_t mask : {0U, 022U, 077U, 0777U}) {
    const mode_t before = ::umask(mask);
    const auto made = create_image_file(dir.fd(), "new");
    (void)::umask(before);
    ASSERT_TRUE(made.ok()) << mask;
    struct stat status {};
    ASSERT_EQ(::fstat(made->get(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777U, 0600U) << mask;
  }
}

TEST(ImageFile, AHugeOneCostsNoMemory) {
  const TempDir dir;
  const auto made = create_image_file(dir.fd(), "huge");
  ASSERT_TRUE(made.ok());
  if (::ftruncate(made->get(), off_t{1} << 40) != 0) GTEST_SKIP() << "no file of 1 TiB here";
  const auto opened = open_image_file(dir.fd(), "huge");
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(read_whole(*opened, 1U << 30, "huge").error().err, EFBIG);
}

TEST(ImageFile, OneThatShrinksIsAnError) {
  const TempDir dir;
  dir.write("file", kPrecious);
  const auto opened = open_image_file(dir.fd(), "file");
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(read_whole(*opened, 100, "file")->size(), 100U);
  dir.write("file", Bytes(50));
  EXPECT_EQ(read_whole(*opened, 100, "file").error().err, EBADMSG);
}

}  // namespace
}  // namespace sluice
