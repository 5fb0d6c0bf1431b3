// SPDX-License-Identifier: MIT
// Signals of the host that are held while a hook of a dump runs: they stay where they were when nothing can
// hold them, and what was held acts when the process ends, not before.
#include "plugin/held_signals.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "support/failing_allocation.h"

namespace sluice::plugin {
namespace {

bool is_blocked(int signal) {
  sigset_t blocked;
  (void)pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return sigismember(&blocked, signal) == 1;
}

bool is_pending(int signal) {
  sigset_t pending;
  (void)sigpending(&pending);
  return sigismember(&pending, signal) == 1;
}

// One caught, and as the host goes on then.
void hold_and_catch(int signal) {
  std::atomic<bool> stop{false};
  HeldSignals signals(stop);
  const HeldSignals::InHook hook(signals);
  (void)kill(getpid(), signal);
}

TEST(HeldSignals, WhatNothingCanHoldIsNotBlocked) {
  std::atomic<bool> stop{false};
  bool failed = true;
  for (int nth = 0; failed; ++nth) {
    HeldSignals signals(stop);
    test::failing_allocation().arm(nth);
    {
      const HeldSignals::InHook hook(signals);
      failed = !test::failing_allocation().disarm();
      EXPECT_NE(is_blocked(SIGTERM), failed);
    }
    EXPECT_FALSE(is_blocked(SIGTERM));
    EXPECT_FALSE(is_blocked(SIGINT));
    ASSERT_LT(nth, 100);
  }
}

// CRIU has things to undo after exit() of plugins.
TEST(HeldSignals, WhatWasHeldActsAtTheEndOfTheProcess) {
  const auto end = [] {
    hold_and_catch(SIGTERM);
    if (is_blocked(SIGTERM)) _exit(1);  // a second one acts at once
    (void)!write(STDERR_FILENO, "undone", 6);
    std::exit(2);
  };
  EXPECT_EXIT(end(), ::testing::KilledBySignal(SIGTERM), "undone");
}

TEST(HeldSignals, WhatComesTooLateDoesNotAct) {
  const auto end = [] {
    std::atomic<bool> stop{false};
    {
      HeldSignals signals(stop);
      signals.set_too_late();
      const HeldSignals::InHook hook(signals);
      (void)kill(getpid(), SIGTERM);
    }
    std::exit(stop || is_blocked(SIGTERM) ? 1 : 2);
  };
  EXPECT_EXIT(end(), ::testing::ExitedWithCode(2), "");
}

// Old files go then, which may take long.
TEST(HeldSignals, NorDoesASecondOneWhenTheQueuesRun) {
  const auto end = [] {
    std::atomic<bool> stop{false};
    {
      HeldSignals signals(stop);
      signals.set_too_late();
      const HeldSignals::InHook hook(signals);
      signals.set_nothing_to_undo();
      for (int i = 0; i < 3; ++i) {
        (void)kill(getpid(), SIGTERM);
        while (is_pending(SIGTERM)) (void)sched_yield();
      }
    }
    std::exit(stop || is_blocked(SIGTERM) ? 1 : 2);
  };
  EXPECT_EXIT(end(), ::testing::ExitedWithCode(2), "");
}

// Nor is it too late for one that has come before.
TEST(HeldSignals, WhatHasComeBeforeActs) {
  const auto end = [] {
    {
      std::atomic<bool> stop{false};
      HeldSignals signals(stop);
      {
        const HeldSignals::InHook hook(signals);
        (void)kill(getpid(), SIGTERM);
      }
      signals.set_too_late();
    }
    std::exit(2);
  };
  EXPECT_EXIT(end(), ::testing::KilledBySignal(SIGTERM), "");
}

TEST(HeldSignals, WhatAForkedProcessInheritsIsNotItsOwn) {
  const auto end = [] {
    hold_and_catch(SIGINT);
    const pid_t child = fork();
    if (child == 0) std::exit(3);
    int status = 0;
    (void)waitpid(child, &status, 0);
    (void)!write(STDERR_FILENO, WIFEXITED(status) && WEXITSTATUS(status) == 3 ? "exited" : "killed", 6);
    std::exit(2);
  };
  EXPECT_EXIT(end(), ::testing::KilledBySignal(SIGINT), "exited");
}

}  // namespace
}  // namespace sluice::plugin
