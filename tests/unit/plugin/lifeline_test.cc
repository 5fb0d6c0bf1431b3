// SPDX-License-Identifier: MIT
// Whether a task learns that the main process is dead, and whether it waits in vain for what a dead one would
// have made; and whether main learns of its files.
#include "plugin/restore/basis/lifeline.h"
#include "images/metadata.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "base/unique_fd.h"
#include "plugin/restore/basis/shared_table.h"

namespace sluice::plugin {
namespace {

// As CRIU makes a task: glibc does not know of it. Sanitizer runtimes have to.
pid_t clone_task() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return ::fork();
#else
  return static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, 0L));
#endif
}

// A main process with one task, which becomes our child when main is dead.
class LifelineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    ours_.reset(ends[0]);
    theirs_.reset(ends[1]);
  }

  // The task's exit status is what `task` returns.
  template <class Task>
  void start(Task task) {
    main_ = ::fork();
    ASSERT_GE(main_, 0);
    if (main_ > 0) return;
    const auto lifeline = Lifeline::make();
    const auto table = SharedTable::make(1);
    if (!lifeline || !table || clone_task() != 0) {
      for (;;) (void)::pause();
    }
    ::_exit(task(**lifeline, **table));
  }
  void say() { EXPECT_EQ(::send(ours_.get(), "", 1, 0), 1); }
  void hear() {
    char byte = 0;
    EXPECT_EQ(::recv(ours_.get(), &byte, 1, 0), 1);
  }
  void kill_main() {
    ASSERT_EQ(::kill(main_, SIGKILL), 0);
    ASSERT_EQ(::waitpid(main_, nullptr, 0), main_);
  }
  static int status_of_task() {
    int status = 0;
    EXPECT_GT(::waitpid(-1, &status, 0), 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  UniqueFd ours_, theirs_;
  pid_t main_ = 0;
};

TEST_F(LifelineTest, TellsThatMainLivesAndThatItIsDead) {
  start([this](const Lifeline& main, SharedTable&) {
    const bool lived = main.check().ok();
    char byte = 0;
    (void)!::send(theirs_.get(), &byte, 1, 0);
    (void)!::recv(theirs_.get(), &byte, 1, 0);
    const auto checked = main.check();
    return lived && !checked && checked.error().err == ESRCH ? 0 : 1;
  });
  hear();
  kill_main();
  say();
  EXPECT_EQ(status_of_task(), 0);
}

TEST_F(LifelineTest, WhoWaitsForWhatADeadMainsTaskWouldHaveMadeGivesUp) {
  start([this](const Lifeline& main, SharedTable& table) {
    char byte = 0;
    (void)!::send(theirs_.get(), &byte, 1, 0);
    const auto taken = table.take(1, main);
    return !taken && taken.error().err == ESRCH ? 0 : 1;
  });
  hear();
  kill_main();
  EXPECT_EQ(status_of_task(), 0);
}

// How many there are, an image says.
TEST(SharedTable, MoreThanItHoldsIsRefused) {
  EXPECT_TRUE(SharedTable::make(kMostSharedBos).ok());
  EXPECT_EQ(SharedTable::make(kMostSharedBos + 1).error().err, E2BIG);
  EXPECT_EQ(SharedTable::make(UINT32_MAX).error().err, E2BIG);
}

TEST(Lifeline, TellsMainThatATaskGotAFile) {
  const auto lifeline = Lifeline::make();
  ASSERT_TRUE(lifeline.ok());
  EXPECT_FALSE((*lifeline)->has_files());
  const pid_t task = clone_task();
  if (task == 0) {
    (*lifeline)->note_file();
    ::_exit(0);
  }
  EXPECT_EQ(::waitpid(task, nullptr, 0), task);
  EXPECT_TRUE((*lifeline)->has_files());
}

TEST(Lifeline, CanBeMadeAgain) {
  for (int i = 0; i < 2; ++i) {
    const auto lifeline = Lifeline::make();
    ASSERT_TRUE(lifeline.ok());
    EXPECT_TRUE((*lifeline)->check().ok());
  }
}

}  // namespace
}  // namespace sluice::plugin
