// SPDX-License-Identifier: MIT
// libhsakmt's shared memory, in folders of the test's own.
#include "kfd/memory/hsakmt_shm.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/unique_fd.h"
#include "support/machines.h"

namespace sluice::kfd {
namespace {

using test::Folder;
using test::read_whole;
using test::write_text;

mode_t mode_of(const std::filesystem::path& file) {
  struct stat st {};
  EXPECT_EQ(::stat(file.c_str(), &st), 0) << file;
  return st.st_mode & 07777;
}

std::size_t entries(const std::filesystem::path& directory) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(directory), {}));
}

TEST(HsakmtShm, is_noted_and_made_again) {
  const Folder before;
  write_text(before.path() / "hsakmt_shared_mem",
             std::string("\x78\x56\x34\x12", 4) + std::string(4092, 'x'));
  const auto noted = read_hsakmt_shm(before.path().c_str());
  ASSERT_TRUE(noted.ok() && noted->has_value());
  EXPECT_EQ((*noted)->bytes, 4096U);

  const Folder after;
  const mode_t umask_before = ::umask(077);
  const auto result = restore_hsakmt_shm(**noted, after.path().c_str());
  (void)::umask(umask_before);
  ASSERT_TRUE(result.ok()) << result.error().what;
  EXPECT_EQ(read_hsakmt_shm(after.path().c_str()).value(), *noted);
  const std::string text = read_whole(after.path() / "hsakmt_shared_mem");
  EXPECT_EQ(text, std::string("\x78\x56\x34\x12", 4) + std::string(4092, '\0'));
  EXPECT_EQ(mode_of(after.path() / "hsakmt_shared_mem"), 0666U);
  EXPECT_EQ(mode_of(after.path() / "sem.hsakmt_semaphore"), 0666U);
  EXPECT_EQ(entries(after.path()), 2U);
}

TEST(HsakmtShm, the_semaphore_is_what_the_c_library_makes) {
  const std::string name = "/sluice-test-" + std::to_string(::getpid());
  sem_t* theirs = ::sem_open(name.c_str(), O_CREAT | O_EXCL, 0600, 1);
  if (theirs == SEM_FAILED) GTEST_SKIP() << "no POSIX semaphores here";
  const std::string expected = read_whole("/dev/shm/sem." + name.substr(1));
  EXPECT_EQ(::sem_close(theirs), 0);
  EXPECT_EQ(::sem_unlink(name.c_str()), 0);

  const Folder dir;
  ASSERT_TRUE(restore_hsakmt_shm({64, 1}, dir.path().c_str()).ok());
  EXPECT_EQ(read_whole(dir.path() / "sem.hsakmt_semaphore"), expected);
}

TEST(HsakmtShm, what_exists_is_not_touched) {
  const Folder dir;
  write_text(dir.path() / "hsakmt_shared_mem", "mine");
  write_text(dir.path() / "sem.hsakmt_semaphore", "also mine");
  ASSERT_TRUE(restore_hsakmt_shm({4096, 1}, dir.path().c_str()).ok());
  EXPECT_EQ(read_whole(dir.path() / "hsakmt_shared_mem"), "mine");
  EXPECT_EQ(read_whole(dir.path() / "sem.hsakmt_semaphore"), "also mine");
  EXPECT_EQ(entries(dir.path()), 2U);
}

TEST(HsakmtShm, one_of_the_two_may_be_missing) {
  const Folder dir;
  write_text(dir.path() / "sem.hsakmt_semaphore", "mine");
  ASSERT_TRUE(restore_hsakmt_shm({16, 7}, dir.path().c_str()).ok());
  EXPECT_EQ(read_whole(dir.path() / "hsakmt_shared_mem").size(), 16U);
  EXPECT_EQ(read_whole(dir.path() / "sem.hsakmt_semaphore"), "mine");
}

TEST(HsakmtShm, none_is_none) {
  const Folder dir;
  EXPECT_EQ(read_hsakmt_shm(dir.path().c_str()).value(), std::nullopt);
  write_text(dir.path() / "hsakmt_shared_mem", "abc");
  EXPECT_EQ(read_hsakmt_shm(dir.path().c_str()).value(), std::nullopt);
}

// Every user may put anything into /dev/shm.
TEST(HsakmtShm, what_a_hostile_user_has_put_there_does_not_stop_a_dump) {
  const Folder dir;
  const std::filesystem::path file = dir.path() / "hsakmt_shared_mem";
  const auto expect_none = [&] {
    const auto found = read_hsakmt_shm(dir.path().c_str());
    ASSERT_TRUE(found.ok()) << found.error().what;
    EXPECT_EQ(*found, std::nullopt);
    std::filesystem::remove(file);
  };
  ASSERT_EQ(::mkfifo(file.c_str(), 0666), 0);
  expect_none();
  std::filesystem::create_symlink("/dev/zero", file);
  expect_none();
  std::filesystem::create_directory(file);
  expect_none();
  write_text(file, std::string(4096, 'x'));
  std::filesystem::resize_file(file, std::uintmax_t{1} << 30);  // which no restore would make
  expect_none();
  const UniqueFd leased(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  ASSERT_EQ(::ftruncate(leased.get(), 4096), 0);
  (void)::signal(SIGIO, SIG_IGN);  // "somebody wants it"
  if (::fcntl(leased.get(), F_SETLEASE, F_WRLCK) != 0) GTEST_SKIP() << "this file system has no leases";
  expect_none();
}

// A link that leads nowhere is not filled with what it leads to.
TEST(HsakmtShm, nothing_is_made_through_a_link) {
  const Folder dir;
  std::filesystem::create_symlink(dir.path() / "elsewhere", dir.path() / "hsakmt_shared_mem");
  ASSERT_TRUE(restore_hsakmt_shm({64, 1}, dir.path().c_str()).ok());
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "elsewhere"));
  EXPECT_EQ(entries(dir.path()), 2U);
}

TEST(HsakmtShm, nothing_is_made_in_a_folder_that_a_link_leads_to) {
  const Folder elsewhere, dir;
  const std::filesystem::path link = dir.path() / "shm";
  std::filesystem::create_directory_symlink(elsewhere.path(), link);
  const auto refused = restore_hsakmt_shm({64, 1}, link.c_str());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().err, ENOTDIR);
  EXPECT_NE(refused.error().what.find(link), std::string::npos) << refused.error().what;
  EXPECT_EQ(entries(elsewhere.path()), 0U);
}

TEST(HsakmtShm, sizes_of_a_damaged_image_are_refused) {
  const Folder dir;
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    EXPECT_EQ(restore_hsakmt_shm({bytes, 1}, dir.path().c_str()).error().err, EINVAL);
  }
  EXPECT_EQ(entries(dir.path()), 0U);
}

TEST(HsakmtShm, a_folder_that_is_not_there_is_an_error) {
  EXPECT_EQ(restore_hsakmt_shm({64, 1}, "/nonexistent").error().err, ENOENT);
}

}  // namespace
}  // namespace sluice::kfd
