// SPDX-License-Identifier: MIT
// A write beyond RLIMIT_FSIZE, or to a pipe that nobody reads, is an error and nothing else, as long as a
// hook lasts.
#include "plugin/host/write_signals.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/unique_fd.h"
#include "support/own_process.h"

namespace sluice::plugin {
namespace {

using test::expect_well;
using test::is_blocked;
using test::is_pending;

// Whether the kernel refuses all of these, in this thread.
bool all_fail_with_efbig() {
  const rlimit limit{100, 100};
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
  const UniqueFd file(open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  const bool write_fails = pwrite(file.get(), "x", 1, 100) < 0 && errno == EFBIG;
  const bool truncate_fails = ftruncate(file.get(), 101) < 0 && errno == EFBIG;
  return write_fails && truncate_fails;
}

bool fails_with_epipe() {
  int ends[2];
  if (pipe(ends) != 0) return false;
  (void)close(ends[0]);
  const UniqueFd end(ends[1]);
  return write(end.get(), "x", 1) < 0 && errno == EPIPE;
}

class WriteSignalsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    (void)signal(SIGXFSZ, SIG_DFL);
    (void)signal(SIGPIPE, SIG_DFL);
  }
};

TEST_F(WriteSignalsTest, TheyWouldEndTheProcess) {
  test::expect_killed(SIGXFSZ, all_fail_with_efbig);
  test::expect_killed(SIGPIPE, fails_with_epipe);
}

TEST_F(WriteSignalsTest, AreErrorsAndNothingIsLeftOfThem) {
  expect_well([] {
    bool failed = false;
    {
      const WriteSignals signals;
      failed = all_fail_with_efbig() && fails_with_epipe();
    }
    return failed && !is_blocked(SIGXFSZ) && !is_blocked(SIGPIPE);
  });
}

// In a task that is restored all are blocked, and what is pending would come to the program itself.
TEST_F(WriteSignalsTest, NothingIsLeftPendingWhereTheHostBlocksThem) {
  expect_well([] {
    sigset_t all;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, nullptr);
    bool failed = false;
    {
      const WriteSignals signals;
      failed = all_fail_with_efbig() && fails_with_epipe();
    }
    return failed && is_blocked(SIGXFSZ) && !is_pending(SIGXFSZ) && is_blocked(SIGPIPE) &&
           !is_pending(SIGPIPE);
  });
}

TEST_F(WriteSignalsTest, WhatWasPendingStays) {
  expect_well([] {
    sigset_t one;
    (void)sigemptyset(&one);
    (void)sigaddset(&one, SIGXFSZ);
    (void)pthread_sigmask(SIG_BLOCK, &one, nullptr);
    (void)raise(SIGXFSZ);
    { const WriteSignals signals; }
    return is_pending(SIGXFSZ);
  });
}

TEST_F(WriteSignalsTest, OneThatSomebodyElseHasSentActsAtTheEnd) {
  const auto body = [] {
    const WriteSignals signals;
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child == 0) std::_Exit(kill(parent, SIGXFSZ) == 0 ? 0 : 1);
    int status = 0;
    (void)waitpid(child, &status, 0);
    if (status != 0 || !all_fail_with_efbig()) std::_Exit(1);
    (void)!write(STDERR_FILENO, "held", 4);
  };
  test::expect_killed(SIGXFSZ, body, "held");
}

TEST_F(WriteSignalsTest, WhatTheHostHandlesIsItsOwn) {
  expect_well([] {
    static volatile sig_atomic_t handled = 0;
    (void)signal(SIGXFSZ, [](int) { handled = handled + 1; });
    (void)signal(SIGPIPE, SIG_IGN);
    const WriteSignals signals;
    return all_fail_with_efbig() && fails_with_epipe() && handled == 2 && !is_blocked(SIGXFSZ) &&
           !is_blocked(SIGPIPE);
  });
}

}  // namespace
}  // namespace sluice::plugin
