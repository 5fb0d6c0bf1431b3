// SPDX-License-Identifier: MIT
// Signals of the host that are held while a hook of a dump runs: they stay where they were when nothing can
// hold them, and what was held acts when the process ends, not before.
#include "plugin/host/held_signals.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <set>
#include <utility>

#include "support/failing_allocation.h"
#include "support/own_process.h"

namespace sluice::plugin {
namespace {

using test::expect_killed;
using test::expect_well;
using test::is_blocked;
using test::is_pending;

// A host in a hook of a dump.
struct InHook {
  std::atomic<bool> stop{false};
  std::optional<HeldSignals> signals{std::in_place, stop};
  std::optional<HeldSignals::InHook> hook{*signals};
};

void raise_and_take(int signal) {
  (void)kill(getpid(), signal);
  while (is_pending(signal)) (void)sched_yield();
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
  const InHook host;
  for (const int number : held) EXPECT_TRUE(is_blocked(number)) << number;
  for (int number = 1; number < SIGRTMIN; ++number)
    EXPECT_EQ(is_blocked(number), held.contains(number)) << number;
}

// CRIU has things to undo after exit() of plugins.
TEST(HeldSignals, WhatWasHeldActsAtTheEndOfTheProcess) {
  const auto body = [] {
    {
      const InHook host;
      (void)kill(getpid(), SIGTERM);
    }
    if (is_blocked(SIGTERM)) _exit(1);  // a second one acts at once
    (void)!write(STDERR_FILENO, "undone", 6);
  };
  expect_killed(SIGTERM, body, "undone");
}

TEST(HeldSignals, WhatComesTooLateDoesNotAct) {
  expect_well([] {
    InHook host;
    host.signals->set_too_late();
    (void)kill(getpid(), SIGTERM);
    host.hook.reset();
    host.signals.reset();
    return !host.stop && !is_blocked(SIGTERM);
  });
}

// Old files go then, which may take long.
TEST(HeldSignals, NorDoesASecondOneWhenTheQueuesRun) {
  expect_well([] {
    InHook host;
    host.signals->set_too_late();
    host.signals->set_nothing_to_undo();
    for (int i = 0; i < 3; ++i) raise_and_take(SIGTERM);
    host.hook.reset();
    host.signals.reset();
    return !host.stop && !is_blocked(SIGTERM);
  });
}

// But nothing hangs for ever.
TEST(HeldSignals, UntilTheirSenderInsists) {
  const auto body = [] {
    InHook host;
    host.signals->set_too_late();
    host.signals->set_nothing_to_undo();
    for (;;) raise_and_take(SIGTERM);
  };
  expect_killed(SIGTERM, body);
}

// Nor is it too late for one that has come before.
TEST(HeldSignals, WhatHasComeBeforeActs) {
  const auto body = [] {
    InHook host;
    (void)kill(getpid(), SIGTERM);
    host.hook.reset();
    host.signals->set_too_late();
  };
  expect_killed(SIGTERM, body);
}

// The kernel sends it again and again.
TEST(HeldSignals, ASecondSigxcpuIsNobodysWish) {
  expect_well([] {
    const InHook host;
    for (int i = 0; i < 3; ++i) raise_and_take(SIGXCPU);
    while (!host.stop) (void)sched_yield();
    if (host.signals->caught() != SIGXCPU) return false;
    (void)kill(getpid(), SIGTERM);  // somebody's
    while (host.signals->caught() != SIGTERM) (void)sched_yield();
    std::_Exit(test::kAllIsWell);
  });
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
  expect_well([] {
    limit_cpu(1000, 1000);
    InHook host;
    if (soft_cpu_limit() != 998) return false;
    host.hook.reset();
    return soft_cpu_limit() == 1000;
  });
}

TEST(HeldSignals, TheKernelSaysWhenALimitOfCpuTimeIsNear) {
  expect_well([]() -> bool {
    limit_cpu(4, 4);
    const InHook host;
    while (!host.stop) {  // uses it up
    }
    std::_Exit(host.signals->caught() == SIGXCPU ? test::kAllIsWell : 1);
  });
}

TEST(HeldSignals, OtherLimitsOfCpuTimeStayAsTheyAre) {
  for (const auto& [soft, hard] : {std::pair<rlim_t, rlim_t>(900, 1000), {RLIM_INFINITY, RLIM_INFINITY}}) {
    expect_well([soft = soft, hard = hard] {
      limit_cpu(soft, hard);
      const InHook host;
      return soft_cpu_limit() == soft;
    });
  }
}

TEST(HeldSignals, WhatAForkedProcessInheritsIsNotItsOwn) {
  const auto body = [] {
    {
      const InHook host;
      (void)kill(getpid(), SIGINT);
    }
    const pid_t child = fork();
    if (child == 0) std::exit(3);
    int status = 0;
    (void)waitpid(child, &status, 0);
    (void)!write(STDERR_FILENO, WIFEXITED(status) && WEXITSTATUS(status) == 3 ? "exited" : "killed", 6);
  };
  expect_killed(SIGINT, body, "exited");
}

}  // namespace
}  // namespace sluice::plugin
