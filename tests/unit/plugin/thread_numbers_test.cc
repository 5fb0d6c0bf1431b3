// SPDX-License-Identifier: MIT
// Which numbers new threads get while lanes are made, in a pid namespace of their own.
#include "plugin/host/thread_numbers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

#include "support/pid_namespace.h"
#include "support/temp_dir.h"

namespace sluice::plugin {
namespace {

using test::kNoNamespace;

pid_t number_of_new_thread() {
  pid_t number = 0;
  std::thread([&number] { number = gettid(); }).join();
  return number;
}

pid_t lowest_high() {
  pid_t end = 0;
  std::ifstream("/proc/sys/kernel/pid_max") >> end;
  return end - end / 4;
}

// A directory in place of /proc.
void make_numbers(const test::TempDir& proc, const char* last) {
  const std::filesystem::path kernel = std::filesystem::path(proc.path()) / "sys/kernel";
  std::filesystem::create_directories(kernel);
  std::ofstream(kernel / "pid_max") << "32768\n";
  std::ofstream(kernel / "ns_last_pid") << last;
}

class ThreadNumbersTest : public ::testing::Test {
 protected:
  void expect_in_new_namespace(const std::function<bool()>& body) {
    const int status = test::in_new_pid_namespace([&body] {
      return ::access("/proc/sys/kernel/ns_last_pid", W_OK) != 0 ? kNoNamespace : body() ? 0 : 1;
    });
    if (status == kNoNamespace) GTEST_SKIP() << "no pid namespace is to be had here";
    EXPECT_EQ(status, 0);
  }

  UniqueFd proc_ = UniqueFd(::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
  std::unique_ptr<ThreadNumbers> numbers_ = ThreadNumbers::make().value();
};

TEST_F(ThreadNumbersTest, AreHighWhileRaisedAndLowBehindThat) {
  expect_in_new_namespace([this] {
    const pid_t before = number_of_new_thread();
    {
      const auto raised = numbers_->raise(proc_.get());
      if (!raised || number_of_new_thread() < lowest_high()) return false;
    }
    const pid_t after = number_of_new_thread();
    return before < 10 && after > before && after < 10;
  });
}

// The first process has been given its number, which has moved the kernel's place nowhere.
TEST_F(ThreadNumbersTest, AreLowBehindThatInANamespaceAsCriuMakesIt) {
  const pid_t first_pid = 1;
  clone_args arguments{};
  arguments.flags = CLONE_NEWPID;
  arguments.exit_signal = SIGCHLD;
  arguments.set_tid = reinterpret_cast<std::uintptr_t>(&first_pid);
  arguments.set_tid_size = 1;
  const auto first = static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof arguments));
  if (first == 0) {
    const bool raised = numbers_->raise(proc_.get()).ok();
    const auto next = static_cast<pid_t>(::syscall(SYS_fork));
    if (next == 0) ::_exit(0);
    ::_exit(!raised ? kNoNamespace : next < 10 ? 0 : 1);
  }
  if (first < 0) GTEST_SKIP() << "no pid namespace is to be had here";
  int status = 0;
  ASSERT_EQ(::waitpid(first, &status, 0), first);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoNamespace) GTEST_SKIP() << "numbers cannot be raised here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(ThreadNumbersTest, StayHighUntilTheLastProcessNeedsThemNoMore) {
  expect_in_new_namespace([this] {
    std::optional<ThreadNumbers::Raised> raised(numbers_->raise(proc_.get()).value());
    const pid_t other = ::fork();
    if (other == 0) {
      const pid_t own_before = ::getpid();
      { const auto its = numbers_->raise(proc_.get()); }
      ::_exit(own_before >= lowest_high() && number_of_new_thread() >= lowest_high() ? 0 : 1);
    }
    int status = 0;
    if (::waitpid(other, &status, 0) != other || status != 0) return false;
    raised.reset();
    return number_of_new_thread() < 10;
  });
}

// The kernel kills the process where it would move the kernel's place, in the lock.
void be_killed_by_pwrite() {
  std::array<sock_filter, 4> filter{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pwrite64, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program{.len = filter.size(), .filter = filter.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    ::_exit(kNoNamespace);
}

TEST_F(ThreadNumbersTest, OfATaskThatIsKilledWhileItRaisesThemKeepNoOtherWaiting) {
  const test::TempDir proc;
  make_numbers(proc, "12\n");
  const pid_t killed = ::fork();
  if (killed == 0) {
    be_killed_by_pwrite();
    (void)numbers_->raise(proc.fd());
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(killed, &status, 0), killed);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoNamespace) GTEST_SKIP() << "no seccomp here";
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  const auto other = numbers_->raise(proc.fd());
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().err, ETIMEDOUT);
}

TEST_F(ThreadNumbersTest, AreLeftAloneWhereTheyCannotBeRaised) {
  const test::TempDir none;
  const auto refused = numbers_->raise(none.fd());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().err, ENOENT);
  make_numbers(none, "nonsense\n");
  EXPECT_EQ(numbers_->raise(none.fd()).error().err, EBADMSG);
  make_numbers(none, "12\n");
  EXPECT_TRUE(numbers_->raise(none.fd()).ok()) << "the one before has not been raised";
}

}  // namespace
}  // namespace sluice::plugin
