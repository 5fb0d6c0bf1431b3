// SPDX-License-Identifier: MIT
// Signals of the host that are held while a hook of a dump runs: they stay where they were when nothing can
// hold them, and what was held acts when the process ends, not before.
#include "plugin/host/held_signals.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <set>
#include <utility>

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

// Whoever sends it. Faults of the process, those that stop it, and what CRIU or a write uses are not held.
TEST(HeldSignals, EverySignalThatWouldEndTheProcessIsHeld) {
  const std::set<int> held = {SIGHUP,  SIGINT,    SIGQUIT,      SIGABRT,   SIGUSR1, SIGUSR2,
                              SIGTERM, SIGSTKFLT, SIGXCPU,      SIGVTALRM, SIGPROF, SIGIO,
                              SIGPWR,  SIGRTMIN,  SIGRTMIN + 7, SIGRTMAX};
  // Those that are ignored where this test was started are nobody's to hold.
  for (const int number : held) (void)::signal(number, SIG_DFL);
  std::atomic<bool> stop{false};
  HeldSignals signals(stop);
  const HeldSignals::InHook hook(signals);
  for (const int number : held) EXPECT_TRUE(is_blocked(number)) << number;
  for (int number = 1; number < SIGRTMIN; ++number)
    EXPECT_EQ(is_blocked(number), held.contains(number)) << number;
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

// But nothing hangs for ever.
TEST(HeldSignals, UntilTheirSenderInsists) {
  const auto end = [] {
    std::atomic<bool> stop{false};
    HeldSignals signals(stop);
    signals.set_too_late();
    const HeldSignals::InHook hook(signals);
    signals.set_nothing_to_undo();
    for (;;) {
      (void)kill(getpid(), SIGTERM);
      (void)sched_yield();
    }
  };
  EXPECT_EXIT(end(), ::testing::KilledBySignal(SIGTERM), "");
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

// The kernel sends it again and again.
TEST(HeldSignals, ASecondSigxcpuIsNobodysWish) {
  const auto end = [] {
    std::atomic<bool> stop{false};
    HeldSignals signals(stop);
    const HeldSignals::InHook hook(signals);
    for (int i = 0; i < 3; ++i) {
      (void)kill(getpid(), SIGXCPU);
      while (is_pending(SIGXCPU)) (void)sched_yield();
    }
    while (!stop) (void)sched_yield();
    if (signals.caught() != SIGXCPU) std::exit(1);
    (void)kill(getpid(), SIGTERM);  // somebody's
    while (signals.caught() != SIGTERM) (void)sched_yield();
    std::_Exit(2);
  };
  EXPECT_EXIT(end(), ::testing::ExitedWithCode(2), "");
}

void limit_cpu(rlim_t soft, rlim_t hard) {
  const rlimit limit{soft, hard};
  if (setrlimit(RLIMIT_CPU, &limit) != 0) std::_Exit(9);
}
rlim_t soft_cpu_limit() {
  rlimit limit{};
  (void)getrlimit(RLIMIT_CPU, &limit);
  return limit.rlim_cur;
}

// Both limits are the same (ulimit -t): the kernel would send SIGKILL, which nobody can hold.
TEST(HeldSignals, TheLimitOfCpuTimeLeavesSomeToUndoADump) {
  const auto end = [] {
    limit_cpu(1000, 1000);
    std::atomic<bool> stop{false};
    HeldSignals signals(stop);
    {
      const HeldSignals::InHook hook(signals);
      if (soft_cpu_limit() != 998) std::exit(1);
    }
    std::exit(soft_cpu_limit() == 1000 ? 2 : 3);
  };
  EXPECT_EXIT(end(), ::testing::ExitedWithCode(2), "");
}

TEST(HeldSignals, TheKernelSaysWhenALimitOfCpuTimeIsNear) {
  const auto end = [] {
    limit_cpu(4, 4);
    std::atomic<bool> stop{false};
    HeldSignals signals(stop);
    const HeldSignals::InHook hook(signals);
    while (!stop) {  // uses it up
    }
    std::_Exit(signals.caught() == SIGXCPU ? 2 : 1);
  };
  EXPECT_EXIT(end(), ::testing::ExitedWithCode(2), "");
}

TEST(HeldSignals, OtherLimitsOfCpuTimeStayAsTheyAre) {
  for (const auto& [soft, hard] : {std::pair<rlim_t, rlim_t>(900, 1000), {RLIM_INFINITY, RLIM_INFINITY}}) {
    const auto end = [soft = soft, hard = hard] {
      limit_cpu(soft, hard);
      std::atomic<bool> stop{false};
      HeldSignals signals(stop);
      const HeldSignals::InHook hook(signals);
      std::_Exit(soft_cpu_limit() == soft ? 2 : 1);
    };
    EXPECT_EXIT(end(), ::testing::ExitedWithCode(2), "");
  }
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
