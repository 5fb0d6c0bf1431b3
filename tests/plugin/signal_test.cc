// SPDX-License-Identifier: MIT
// CRIU gets SIGTERM, SIGINT, SIGHUP or SIGQUIT while one of our hooks of a dump runs. The dump is undone, the
// process and its queues run on, and then CRIU dies of the signal.
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>

#include "plugin_test.h"
#include "times_taken.h"
#ifdef SEAM_LIBRARY
#include "seam_plan.h"
#endif

namespace sluice::plugin_test {
namespace {

constexpr std::uint64_t kSlowBytesPerSecond =
    16 * kMiB;  // some seconds for all of a GPU, half a second for the staging

constexpr std::array kSignals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};

using Clock = std::chrono::steady_clock;

// The plugin's own bound, at which it gives up: what comes later the stop has not brought.
constexpr auto kPatience = std::chrono::seconds(5);
constexpr auto kFenceTimeoutSeconds = 1, kAtMostSeconds = 20;  // asked for; with all that a dump does besides

class SignalTest : public PluginTest {
 protected:
  // For the hosts: whoever runs this in the background, or by nohup, has some of them ignored.
  void SetUp() override {
    PluginTest::SetUp();
    for (const int signal : kSignals) (void)::signal(signal, SIG_DFL);
  }

  static void TearDownTestSuite() {
    for (const auto& [what, times] : times_) {
      std::printf("shown: a signal during a dump, %s: queues run after %s, %s after %s\n", what.c_str(),
                  times.queues.text().c_str(),
                  times.end_is_of_second ? "a second one ends the host" : "the host has ended",
                  times.end.text().c_str());
    }
  }

  // A host that waits in DUMP_EXT_FILE for contents: it has said how far they are.
  Program start_waiting_dump(const Strings& more = {}) {
    Program host = scene_.start_host(version(), "dump", more);
    while (!scene_.has_logged("dump: ")) (void)::sched_yield();
    return host;
  }
  void slow_engines(std::uint64_t bytes_per_second = kSlowBytesPerSecond) {
    for (const unsigned gpu : {0U, 1U}) scene_.control().set_engine_rate(gpu, bytes_per_second);
  }
  bool queues_run() {
    const auto process = scene_.control().process(scene_.subject_pid());
    return process && !process->queues_paused && process->queues_run();
  }
  // Sends it and waits for the end, which is to be that signal's. `what`: under which the times are told.
  void end_and_take_times(Program& host, int signal, const std::string& what) {
    ASSERT_FALSE(queues_run());
    const Clock::time_point sent = Clock::now();
    ASSERT_EQ(::kill(host.pid(), signal), 0);
    expect_queues_to_run(host, sent, what);
    EXPECT_EQ(host.wait(), 128 + signal);
    times_[what].end.add(Clock::now() - sent);
    expect_host_came_to_its_end();
  }
  // Some versions undo what they have done to the tasks and to the network after exit() of plugins.
  void expect_host_came_to_its_end() { EXPECT_TRUE(scene_.has_logged("Dumping FAILED.")) << scene_.log(); }
  void expect_queues_to_run(const Program& host, Clock::time_point sent, const std::string& what) {
    while (!queues_run() && !host.has_ended()) (void)::sched_yield();
    const Clock::duration taken = Clock::now() - sent;
    EXPECT_TRUE(queues_run());
    EXPECT_LT(taken, kPatience);
    times_[what].queues.add(taken);
  }
  void expect_undone() {
    EXPECT_TRUE(images("amdgpu-").empty());
    expect_running();
  }

  struct Times {
    TimesTaken queues, end;
    bool end_is_of_second = false;
  };
  static inline std::map<std::string, Times> times_;
};

TEST_P(SignalTest, EndsTheDumpAndThenTheHost) {
  for (const int signal : kSignals) {
    SCOPED_TRACE(signal);
    ASSERT_NO_FATAL_FAILURE(start());
    slow_engines();
    Program host = start_waiting_dump();
    end_and_take_times(host, signal, "contents flow");
    const std::string log = scene_.log();
    EXPECT_NE(log.find("SIG" + std::string(sigabbrev_np(signal)) + ": dump cancelled"), std::string::npos)
        << log;
    slow_engines(0);
    ASSERT_NO_FATAL_FAILURE(expect_undone());
    ASSERT_NO_FATAL_FAILURE(dump());
    restore_and_check();
    EXPECT_EQ(heard("quit"), "ok quit");
  }
}

// Nobody needs what the engine has not copied any more: the queues run when the host ends.
TEST_P(SignalTest, EndsTheDumpThoughTheEngineHangs) {
  ASSERT_NO_FATAL_FAILURE(start());
  scene_.control().hang_fence(0, 0);
  Program host = start_waiting_dump();
  end_and_take_times(host, SIGTERM, "an engine hangs");
  scene_.control().clear_faults();
  scene_.control().release_hung_fences();
  ASSERT_NO_FATAL_FAILURE(expect_undone());
}

// The queues stand by then, and nothing of the older checkpoint has been removed: it stays.
TEST_P(SignalTest, LeavesAnOlderCheckpointWhereAJobOfTheProcessHangs) {
  ASSERT_NO_FATAL_FAILURE(start({"--gem-handles", "1"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(restore_and_check());
  const std::set<std::string> older = images("amdgpu-");
  ASSERT_FALSE(older.empty());
  scene_.control().hang_fence(0, scene_.control().fences_made(0) + 1);
  ASSERT_EQ(heard("submit"), "ok submit");
  scene_.control().clear_trace();
  Program host = scene_.start_host(version(), "dump", {});
  while (traced("DRM_GEM_WAIT_IDLE") == 0 && !host.has_ended()) (void)::sched_yield();
  end_and_take_times(host, SIGTERM, "a job of the process hangs");
  EXPECT_EQ(images("amdgpu-"), older);
  scene_.control().clear_faults();
  scene_.control().release_hung_fences();
  expect_running();
}

#ifdef SEAM_LIBRARY
// What it has been given cannot be taken back: the queues do not wait for that, the host does until it is
// told again.
TEST_P(SignalTest, LetsTheQueuesRunThoughTheDiskHangs) {
  SeamPlan plan(scene_);
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  std::size_t places = 0;
  const std::vector<Failure> all = plan->failures(seam::kHang, Turns::FirstAndMiddle, &places);
  const auto write = std::find_if(all.begin(), all.end(), [](const Failure& failure) {
    return failure.call == "io_uring write" && failure.turn == 1;
  });
  if (write == all.end()) GTEST_SKIP() << "this kernel has no io_uring for us";
  plan->disarm();
  restore_and_check();
  plan->arm(*write);
  Program host = scene_.start_host(version(), "dump", {});
  while (!plan->signalled() && !host.has_ended()) (void)::sched_yield();
  ASSERT_TRUE(plan->signalled().has_value());
  const std::string what = "a disk hangs";
  expect_queues_to_run(host, *plan->signalled(), what);
  const Clock::time_point sent = Clock::now();
  ASSERT_EQ(::kill(host.pid(), SIGTERM), 0);
  EXPECT_EQ(host.wait(), 128 + SIGTERM);
  times_[what].end.add(Clock::now() - sent);
  times_[what].end_is_of_second = true;
  plan->disarm();
  expect_running();
}

// What exit() throws ends neither the dump's undoing nor what was held.
TEST_P(SignalTest, ActsThoughMemoryRunsOutInExit) {
  SeamPlan plan(scene_);
  ASSERT_NO_FATAL_FAILURE(start());
  const auto allocations = [&plan] {
    std::size_t places = 0;
    std::vector<Failure> all = plan->failures(seam::kError, Turns::FirstAndMiddle, &places);
    std::erase_if(all, [](const Failure& failure) { return failure.call != "malloc" || failure.turn != 1; });
    return all;
  };
  plan->disarm();
  Program failing =
      scene_.start_host(version(), "dump", {"--fail-after", "cpu_pages", "--hold", "before_exit"});
  ASSERT_EQ(failing.hear_control(), "before_exit") << scene_.log();
  const std::vector<Failure> before = allocations();
  failing.release_control();
  ASSERT_EQ(failing.wait(), 1) << scene_.log();
  std::vector<Failure> in_exit = allocations();
  std::erase_if(in_exit, [&](const Failure& failure) {
    return std::any_of(before.begin(), before.end(),
                       [&](const Failure& earlier) { return earlier.place == failure.place; });
  });
  bool threw = false;
  for (const Failure& failure : in_exit) {
    SCOPED_TRACE(failure.name());
    (void)scene_.log();
    slow_engines();
    plan->arm(failure);
    Program host = start_waiting_dump();
    ASSERT_EQ(::kill(host.pid(), SIGTERM), 0);
    EXPECT_EQ(host.wait(), 128 + SIGTERM);
    threw = scene_.has_logged("Error (exit): out of memory");
    plan->disarm();
    slow_engines(0);
    expect_running();
    if (threw) break;  // some are for what can be done without
  }
  EXPECT_TRUE(threw);
}
#endif

// Nothing hangs then, and the next hook is the one that lets the queues run.
TEST_P(SignalTest, ASecondOneBetweenTwoHooksLeavesNoQueueStopped) {
  ASSERT_NO_FATAL_FAILURE(start());
  slow_engines();
  Program host = start_waiting_dump({"--hold", "before_exit"});
  ASSERT_EQ(::kill(host.pid(), SIGTERM), 0);
  ASSERT_EQ(host.hear_control(), "before_exit") << scene_.log();
  ASSERT_EQ(::kill(host.pid(), SIGTERM), 0);
  host.release_control();
  EXPECT_EQ(host.wait(), 128 + SIGTERM);
  expect_host_came_to_its_end();
  slow_engines(0);
  expect_undone();
}

// A driver that hangs keeps nobody for ever who asks twice. The queues are then for the next dump to start
// again, or for sluice unpause.
TEST_P(SignalTest, ASecondOneActsAtOnce) {
  ASSERT_NO_FATAL_FAILURE(start());
  slow_engines();
  Program host = start_waiting_dump();
  scene_.control().between_calls([&] {  // no call of the driver returns
    ASSERT_EQ(::kill(host.pid(), SIGTERM), 0);
    while (host.has_pending(SIGTERM)) (void)::sched_yield();
    ASSERT_EQ(::kill(host.pid(), SIGTERM), 0);
    EXPECT_EQ(host.wait(), 128 + SIGTERM);
  });
  slow_engines(0);
  ASSERT_NO_FATAL_FAILURE(dump());
  restore_and_check();
}

// Who ends a session sends SIGTERM and SIGHUP; shell and kernel send SIGHUP each when a terminal goes. Nobody
// asks twice with that.
TEST_P(SignalTest, AHangUpIsNoSecondOne) {
  for (const auto& signals : {std::array{SIGTERM, SIGHUP}, {SIGHUP, SIGTERM}, {SIGHUP, SIGHUP}}) {
    SCOPED_TRACE(testing::PrintToString(signals));
    ASSERT_NO_FATAL_FAILURE(start());
    slow_engines();
    Program host = start_waiting_dump();
    scene_.control().between_calls([&] {  // no call of the driver returns, so the hook goes on
      for (const int signal : signals) {
        ASSERT_EQ(::kill(host.pid(), signal), 0);
        while (host.has_pending(signal)) (void)::sched_yield();
      }
    });
    EXPECT_EQ(host.wait(), 128 + (signals[0] == signals[1] ? SIGHUP : SIGTERM));
    expect_host_came_to_its_end();
    (void)scene_.log();
    slow_engines(0);
    ASSERT_NO_FATAL_FAILURE(expect_undone());
    EXPECT_EQ(heard("quit"), "ok quit");
  }
}

TEST_P(SignalTest, AnIgnoredOneStaysIgnored) {
  ASSERT_NO_FATAL_FAILURE(start());
  slow_engines();
  struct sigaction ignore {
  }, before{};
  ignore.sa_handler = SIG_IGN;
  ASSERT_EQ(::sigaction(SIGTERM, &ignore, &before), 0);
  Program host = start_waiting_dump();
  ASSERT_EQ(::sigaction(SIGTERM, &before, nullptr), 0);
  ASSERT_EQ(::kill(host.pid(), SIGTERM), 0);
  EXPECT_EQ(host.wait(), 0) << scene_.log();
  slow_engines(0);
  scene_.wait_until_subject_is_gone();
  restore_and_check();
}

// A hang that the kernel does not end is answered when the user says.
TEST_P(SignalTest, AFenceThatNeverComesIsWaitedForAsLongAsTheUserSays) {
  scene_.variables["SLUICE_FENCE_TIMEOUT"] = std::to_string(kFenceTimeoutSeconds);
  ASSERT_NO_FATAL_FAILURE(start());
  scene_.control().hang_fence(0, 0);
  const Clock::time_point began = Clock::now();
  // The host sees what is kept on purpose: the engine may still write to it.
  EXPECT_NE(scene_.dump(version()), 0);
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(kAtMostSeconds));
  const std::string log = scene_.log();
  EXPECT_NE(log.find("the GPU did not finish within 1000 ms"), std::string::npos) << log;
  scene_.control().clear_faults();
  scene_.control().release_hung_fences();
  expect_undone();
}

INSTANTIATE_TEST_SUITE_P(Hosts, SignalTest, ::testing::ValuesIn(kVersionsOfLongSuites), name_of_version);

}  // namespace
}  // namespace sluice::plugin_test
