// SPDX-License-Identifier: MIT
// The ledger of VRAM that restores are about to take: several processes, dead ones, more than there is room
// for, and directories and files that somebody else has made.
#include "plugin/restore/gpus/vram_ledger.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "support/temp_dir.h"

namespace sluice::plugin {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kGpu = 0x2000;

// A process that does what it is told, one word after another.
class Other {
 public:
  explicit Other(const std::function<void(int socket)>& body) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      body(ends[1]);
      ::_exit(0);
    }
    ::close(ends[1]);
    socket_.reset(ends[0]);
  }
  ~Other() { kill(); }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;

  void say() { EXPECT_EQ(::send(socket_.get(), "", 1, MSG_NOSIGNAL), 1); }
  bool hear() { return hear(socket_.get()); }
  void kill() {
    if (pid_ <= 0) return;
    (void)::kill(pid_, SIGKILL);
    (void)::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

  static bool hear(int socket) {
    char byte = 0;
    return ::recv(socket, &byte, 1, 0) == 1;
  }
  static void say(int socket) { (void)::send(socket, "", 1, MSG_NOSIGNAL); }

 private:
  pid_t pid_ = 0;
  UniqueFd socket_;
};

class VramLedgerTest : public ::testing::Test {
 protected:
  std::string path() const { return dir_.path() + "/ledger"; }
  std::string file() const { return path() + "/vram"; }

  std::unique_ptr<VramLedger> open() const {
    auto ledger = VramLedger::open(path());
    EXPECT_TRUE(ledger.ok()) << ledger.error().what;
    return ledger ? std::move(*ledger) : nullptr;
  }
  int error() const {
    const auto ledger = VramLedger::open(path());
    return ledger ? 0 : ledger.error().err;
  }
  static void reserve(VramLedger& ledger, std::uint32_t gpu, std::uint64_t bytes) {
    const FutexLocked locked = ledger.lock();
    ledger.reserve(gpu, bytes);
  }

  // Another restore, which has reserved `bytes` and lives until it is killed or hears a word.
  std::unique_ptr<Other> restore_with(std::uint64_t bytes) const {
    auto other = std::make_unique<Other>([this, bytes](int socket) {
      const auto ledger = VramLedger::open(path());
      if (!ledger) return;
      reserve(**ledger, kGpu, bytes);
      Other::say(socket);
      (void)Other::hear(socket);
    });
    EXPECT_TRUE(other->hear());
    return other;
  }

  test::TempDir dir_;
};

TEST_F(VramLedgerTest, MakesItsDirectoryAndFileForItsOwnUserAlone) {
  const auto ledger = open();
  struct stat status {};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0755U);
  ASSERT_EQ(::stat(file().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600U);
}

TEST_F(VramLedgerTest, ShowsWhatOthersHaveReservedAndNotItsOwn) {
  const auto ledger = open();
  EXPECT_EQ(ledger->reserved_by_others(kGpu), 0U);
  const auto first = restore_with(100);
  const auto second = restore_with(23);
  EXPECT_EQ(ledger->reserved_by_others(kGpu), 123U);
  EXPECT_EQ(ledger->reserved_by_others(kGpu + 1), 0U);
  reserve(*ledger, kGpu, 1000);
  EXPECT_EQ(ledger->reserved_by_others(kGpu), 123U);
}

TEST_F(VramLedgerTest, TakesBackWhatWasAllocatedAndNoMore) {
  const auto mine = open();
  Other other([this](int socket) {
    const auto ledger = VramLedger::open(path());
    reserve(**ledger, kGpu, 100);
    reserve(**ledger, kGpu, 50);
    reserve(**ledger, kGpu + 1, 7);
    for (const std::uint64_t bytes : {60U, 1000U}) {
      Other::say(socket);
      (void)Other::hear(socket);
      const FutexLocked locked = (*ledger)->lock();
      (*ledger)->take_back(kGpu, bytes);
      (*ledger)->take_back(kGpu + 2, 5);  // of which nothing was reserved
    }
    Other::say(socket);
    (void)Other::hear(socket);
    (*ledger)->clear();
    Other::say(socket);
    (void)Other::hear(socket);
  });
  for (const std::uint64_t left : {150U, 90U, 0U}) {
    ASSERT_TRUE(other.hear());
    EXPECT_EQ(mine->reserved_by_others(kGpu), left);
    EXPECT_EQ(mine->reserved_by_others(kGpu + 1), 7U);
    other.say();
  }
  ASSERT_TRUE(other.hear());
  EXPECT_EQ(mine->reserved_by_others(kGpu + 1), 0U);
}

// As a task of CRIU's: no descriptor is left to it, and it writes for its main.
TEST_F(VramLedgerTest, TasksWriteIntoTheSlotOfTheirMain) {
  const auto mine = open();
  Other main([this](int socket) {
    const auto ledger = VramLedger::open(path());
    const pid_t task = ::fork();
    if (task == 0) {
      for (int fd = 3; fd < 1024; ++fd) (void)::close(fd);
      reserve(**ledger, kGpu, 42);
      ::_exit(0);
    }
    (void)::waitpid(task, nullptr, 0);
    Other::say(socket);
    (void)Other::hear(socket);
  });
  ASSERT_TRUE(main.hear());
  EXPECT_EQ(mine->reserved_by_others(kGpu), 42U);
  // The slot is main's for as long as it lives, whatever its task has closed.
  const auto third = open();
  EXPECT_EQ(mine->reserved_by_others(kGpu), 42U);
}

TEST_F(VramLedgerTest, WhatADeadRestoreHasReservedGoesWithTheNextThatBegins) {
  const auto dead = restore_with(100);
  dead->kill();
  const auto ledger = open();
  EXPECT_EQ(ledger->reserved_by_others(kGpu), 0U);
}

TEST_F(VramLedgerTest, WhatALivingOneHasReservedStaysWhenOthersBeginAndEnd) {
  const auto living = restore_with(100);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(open()->reserved_by_others(kGpu), 100U);
}

TEST_F(VramLedgerTest, OneThatEndsLeavesNothing) {
  const auto watcher = open();
  {
    const auto other = restore_with(100);
    EXPECT_EQ(watcher->reserved_by_others(kGpu), 100U);
    other->say();
    EXPECT_FALSE(other->hear());  // it has ended: its destructor has run
  }
  EXPECT_EQ(open()->reserved_by_others(kGpu), 0U);
}

// Each process has one: record locks do not keep a process from itself.
TEST_F(VramLedgerTest, IsRefusedToOneMoreThanThereAreSlots) {
  std::vector<std::unique_ptr<Other>> others;
  for (unsigned i = 0; i < VramLedger::kSlots; ++i) others.push_back(restore_with(1));
  EXPECT_EQ(error(), EAGAIN);
  others.back()->kill();
  EXPECT_EQ(open()->reserved_by_others(kGpu), VramLedger::kSlots - 1);
}

TEST_F(VramLedgerTest, SumsStopAtTheLargestNumber) {
  const auto ledger = open();
  const auto first = restore_with(std::numeric_limits<std::uint64_t>::max());
  const auto second = restore_with(5);
  EXPECT_EQ(ledger->reserved_by_others(kGpu), std::numeric_limits<std::uint64_t>::max());
}

TEST_F(VramLedgerTest, MoreGpusThanAProcessCanHaveAreNotWrittenDown) {
  const auto mine = open();
  Other other([this](int socket) {
    const auto ledger = VramLedger::open(path());
    for (std::uint32_t gpu = 1; gpu <= 100; ++gpu) reserve(**ledger, gpu, 1);
    Other::say(socket);
    (void)Other::hear(socket);
  });
  ASSERT_TRUE(other.hear());
  EXPECT_EQ(mine->reserved_by_others(64), 1U);
  EXPECT_EQ(mine->reserved_by_others(65), 0U);
}

// Look, choose, reserve: whoever is in there is alone, so none of many takes the same of few places.
TEST_F(VramLedgerTest, ManyAtOnceNeverChooseTheSame) {
  constexpr unsigned kMany = 16;
  std::vector<std::unique_ptr<Other>> others;
  for (unsigned i = 0; i < kMany; ++i) {
    others.push_back(std::make_unique<Other>([this](int socket) {
      const auto ledger = VramLedger::open(path());
      (void)Other::hear(socket);
      {
        const FutexLocked locked = (*ledger)->lock();
        std::uint32_t gpu = 1;
        while ((*ledger)->reserved_by_others(gpu) != 0) ++gpu;
        (*ledger)->reserve(gpu, 1);
      }
      Other::say(socket);
      (void)Other::hear(socket);
    }));
  }
  for (const auto& other : others) other->say();
  for (const auto& other : others) EXPECT_TRUE(other->hear());
  const auto ledger = open();
  for (std::uint32_t gpu = 1; gpu <= kMany; ++gpu) EXPECT_EQ(ledger->reserved_by_others(gpu), 1U) << gpu;
}

TEST_F(VramLedgerTest, ALockThatADeadOneHeldIsTaken) {
  const auto mine = open();
  Other holder([this](int socket) {
    const auto ledger = VramLedger::open(path());
    const FutexLocked locked = (*ledger)->lock();
    (*ledger)->reserve(kGpu, 5);
    Other::say(socket);
    (void)Other::hear(socket);
  });
  ASSERT_TRUE(holder.hear());
  holder.kill();
  reserve(*mine, kGpu, 7);  // comes to an end
  const FutexLocked again = mine->lock();
}

TEST_F(VramLedgerTest, IsRefusedAFileOrDirectoryThatIsNotItsOwn) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives files to others";
  fs::create_directory(path());
  ASSERT_EQ(::chown(path().c_str(), 1000, 1000), 0);
  EXPECT_EQ(error(), EPERM);
  ASSERT_EQ(::chown(path().c_str(), 0, 0), 0);
  std::ofstream(file()).flush();
  ASSERT_EQ(::chmod(file().c_str(), 0600), 0);
  ASSERT_EQ(::chown(file().c_str(), 1000, 1000), 0);
  EXPECT_EQ(error(), EPERM);
}

TEST_F(VramLedgerTest, IsRefusedWhatOthersMayWriteOrRead) {
  fs::create_directory(path());
  for (const unsigned mode : {0775U, 0757U, 0777U}) {
    ASSERT_EQ(::chmod(path().c_str(), mode), 0);
    EXPECT_EQ(error(), EPERM) << mode;
  }
  ASSERT_EQ(::chmod(path().c_str(), 0755), 0);
  std::ofstream(file()).flush();
  for (const unsigned mode : {0640U, 0604U, 0620U}) {
    ASSERT_EQ(::chmod(file().c_str(), mode), 0);
    EXPECT_EQ(error(), EPERM) << mode;
  }
  ASSERT_EQ(::chmod(file().c_str(), 0600), 0);
  EXPECT_EQ(error(), 0);
}

TEST_F(VramLedgerTest, FollowsNoLinkAndOpensNothingButAFile) {
  const std::string target = dir_.path() + "/target";
  std::ofstream(target) << "somebody's";
  ASSERT_EQ(::chmod(target.c_str(), 0600), 0);
  fs::create_directory(path());
  fs::create_symlink(target, file());
  EXPECT_EQ(error(), ELOOP);
  fs::remove(file());
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  EXPECT_EQ(error(), EPERM);
  fs::remove(file());
  fs::create_directory(file());
  EXPECT_NE(error(), 0);
  fs::remove_all(path());
  fs::create_directory_symlink(dir_.path(), path());
  EXPECT_NE(error(), 0);
  std::string text;
  std::getline(std::ifstream(target), text);
  EXPECT_EQ(text, "somebody's");
}

TEST_F(VramLedgerTest, IsRefusedAFileOfAnotherForm) {
  fs::create_directory(path());
  std::ofstream(file()) << "short";
  ASSERT_EQ(::chmod(file().c_str(), 0600), 0);
  EXPECT_EQ(error(), EBADMSG);
  fs::remove(file());
  (void)open();
  {
    std::fstream text(file(), std::ios::in | std::ios::out | std::ios::binary);
    text << "[SL-R43]";
  }
  EXPECT_EQ(error(), EBADMSG);
}

// Whatever is in the slots, reading them ends, and the lock can be had.
TEST_F(VramLedgerTest, BearsAFileFullOfGarbage) {
  const auto living = restore_with(1);
  const std::uint64_t form_bytes = 8;
  {
    std::fstream text(file(), std::ios::in | std::ios::out | std::ios::binary);
    text.seekp(static_cast<std::streamoff>(form_bytes));
    const std::string garbage(fs::file_size(file()) - form_bytes, '\x5b');
    text << garbage;
  }
  const auto ledger = open();
  EXPECT_EQ(ledger->reserved_by_others(kGpu), 0U);
  EXPECT_GT(ledger->reserved_by_others(0x5b5b5b5b), 0U);
  reserve(*ledger, kGpu, 5);
}

TEST_F(VramLedgerTest, SaysWhenItCannotBeMade) {
  const auto ledger = VramLedger::open(dir_.path() + "/none/ledger");
  ASSERT_FALSE(ledger.ok());
  EXPECT_EQ(ledger.error().err, ENOENT);
  const auto proc = VramLedger::open("/proc/ledger");
  EXPECT_FALSE(proc.ok());
}

}  // namespace
}  // namespace sluice::plugin
