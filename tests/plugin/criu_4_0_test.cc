// SPDX-License-Identifier: MIT
// What CRIU 4.0 alone does: it calls CHECKPOINT_DEVICES as a part of freezing, under the alarm that bounds
// this and ends CRIU with abort(), and in a pre-dump, too.
#include <sched.h>
#include <signal.h>

#include <set>
#include <string>

#include "lookalike/task_tree.h"
#include "lookalike/test_streamer.h"
#include "plugin_test.h"

namespace sluice::plugin_test {
namespace {

using lookalike::capture_to;
using lookalike::probe_plugin_directory;
using lookalike::serve_from;
using lookalike::Streamer;
using lookalike::TaskTree;

class Criu40Test : public SceneTest {
 protected:
  Program start_dump(const Strings& more = {}) {
    Strings arguments = kTimeout;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return scene_.start_host(kCriu40.name, "dump", arguments);
  }

  // Another one with the same time, on a machine of its own, whose plugin hangs in CHECKPOINT_DEVICES. A host
  // that was in this hook before, with its alarm running, has ended by then, too.
  static void wait_until_the_alarm_has_ended_another() {
    Scene other(small_machine(1), probe_plugin_directory());
    other.variables["PROBE_HANG"] = "CHECKPOINT_DEVICES";
    ASSERT_TRUE(other.start_subject({"--vram", "1M", "--gtt", "1M"}).starts_with("ready"));
    ASSERT_EQ(other.dump(kCriu40.name, kTimeout), 128 + SIGABRT) << other.log();
  }

  // In none of whose hooks anything has been stopped.
  void expect_untouched() {
    const auto process = scene_.control().process(scene_.subject_pid());
    ASSERT_TRUE(process.has_value());
    EXPECT_EQ(process->process_infos, 0U);
    expect_running();
  }

  static void start_two(TaskTree& tasks) {
    for (const char* seed : {"1", "2"}) {
      const std::string ready =
          tasks.add({"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--svm-context", "--seed", seed});
      ASSERT_TRUE(ready.starts_with("ready")) << ready;
    }
  }
  static void expect_restored(TaskTree& tasks) {
    ASSERT_TRUE(tasks.meet_restored());
    EXPECT_EQ(tasks.what_is_not_whole(), "");
    EXPECT_EQ(tasks.who_does_not_quit(), "");
  }

  // Of the hosts: what comes before the hook takes a small part of it, however busy the machine is.
  static inline const Strings kTimeout = {"--timeout-ms", "1000"};
};

TEST_F(Criu40Test, QueuesThatTakeLongerToStopThanTheAlarmAreWaitedFor) {
  ASSERT_NO_FATAL_FAILURE(start());
  Program host = start_dump({"--hold", "seized"});
  ASSERT_EQ(host.hear_control(), "seized") << scene_.log();
  scene_.control().between_calls([&] {  // no call of the driver returns
    host.release_control();
    wait_until_the_alarm_has_ended_another();
  });
  ASSERT_EQ(host.wait(), 0) << scene_.log();
  (void)scene_.log();
  scene_.wait_until_subject_is_gone();
  restore_and_check_with(kCriu40.name);
}

// Of a file of a render node, whose memory is dumped when the GPU is through with it.
TEST_F(Criu40Test, AJobThatGoesOnForLongerThanTheAlarmIsWaitedFor) {
  ASSERT_NO_FATAL_FAILURE(start({"--gem-handles", "1"}));
  scene_.control().hang_fence(0, scene_.control().fences_made(0) + 1);
  ASSERT_EQ(heard("submit"), "ok submit");
  scene_.control().clear_trace();
  Program host = start_dump();
  while (traced("DRM_GEM_WAIT_IDLE") == 0 && !host.has_ended()) (void)::sched_yield();
  ASSERT_NO_FATAL_FAILURE(wait_until_the_alarm_has_ended_another());
  scene_.control().clear_faults();
  scene_.control().release_hung_fences();
  ASSERT_EQ(host.wait(), 0) << scene_.log();
  (void)scene_.log();
  scene_.wait_until_subject_is_gone();
  restore_and_check_with(kCriu40.name);
}

// And ends in order when it is told to.
TEST_F(Criu40Test, ASignalEndsAHookThatWaitsForLongerThanTheAlarm) {
  ASSERT_NO_FATAL_FAILURE(start({"--gem-handles", "1"}));
  ASSERT_EQ(scene_.dump(kCriu40.name, {"--leave-running"}), 0) << scene_.log();
  const std::set<std::string> older = images("amdgpu-");
  scene_.control().hang_fence(0, scene_.control().fences_made(0) + 1);
  ASSERT_EQ(heard("submit"), "ok submit");
  scene_.control().clear_trace();
  Program host = start_dump();
  while (traced("DRM_GEM_WAIT_IDLE") == 0 && !host.has_ended()) (void)::sched_yield();
  ASSERT_NO_FATAL_FAILURE(wait_until_the_alarm_has_ended_another());
  ASSERT_EQ(::kill(host.pid(), SIGTERM), 0);
  EXPECT_EQ(host.wait(), 128 + SIGTERM) << scene_.log();
  EXPECT_EQ(images("amdgpu-"), older);
  scene_.control().clear_faults();
  scene_.control().release_hung_fences();
  expect_running();
}

TEST_F(Criu40Test, ADumpWithoutATimeoutComesBackWhole) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(scene_.dump(kCriu40.name, {"--timeout-ms", "0"}), 0) << scene_.log();
  (void)scene_.log();
  scene_.wait_until_subject_is_gone();
  restore_and_check_with(kCriu40.name);
}

// The kernel's own checkpoint fails, before CRIU has made its first image.
TEST_F(Criu40Test, ADumpThatIsRefusedInTheHookLeavesAnOlderCheckpoint) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(scene_.dump(kCriu40.name, {"--leave-running"}), 0) << scene_.log();
  const std::set<std::string> older = images("amdgpu-");
  scene_.control().inject(
      {.device = vamdgpu::On::Kfd, .nr = kCriuNr, .op = static_cast<int>(kCheckpoint), .error = EINVAL});
  EXPECT_EQ(scene_.dump(kCriu40.name), 1);
  scene_.control().clear_faults();
  EXPECT_EQ(images("amdgpu-"), older);
  ASSERT_NO_FATAL_FAILURE(expect_running());
  EXPECT_EQ(heard("quit"), "ok quit");
  (void)scene_.log();
  restore_and_check_with(kCriu40.name);
}

// It asks for each task, and the first stands for all.
TEST_F(Criu40Test, ATreeComesBackIntact) {
  TaskTree tasks(scene_);
  ASSERT_NO_FATAL_FAILURE(start_two(tasks));
  ASSERT_EQ(scene_.dump(kCriu40.name, tasks.with_pids()), 0) << scene_.log();
  tasks.wait_until_dumped();
  EXPECT_EQ(scene_.control().criu_calls(kProcessInfo), 2U);
  (void)scene_.log();
  ASSERT_EQ(scene_.start_host(kCriu40.name, "restore", {}).wait(), 0) << scene_.log();
  expect_restored(tasks);
}

TEST_F(Criu40Test, ATreeComesBackWholeFromAStream) {
  const ScratchDirectory place;
  TaskTree tasks(scene_);
  ASSERT_NO_FATAL_FAILURE(start_two(tasks));
  {
    Streamer streamer(scene_.images(), "capture", capture_to(place.path() / "image"));
    ASSERT_TRUE(streamer.ready());
    ASSERT_EQ(scene_.dump(kCriu40.name, tasks.with_pids({"--stream"})), 0) << scene_.log();
    ASSERT_EQ(streamer.wait(), 0);
  }
  tasks.wait_until_dumped();
  (void)scene_.log();
  Streamer streamer(scene_.images(), "serve", serve_from(place.path() / "image"));
  ASSERT_TRUE(streamer.ready());
  ASSERT_EQ(scene_.start_host(kCriu40.name, "restore", {"--stream"}).wait(), 0) << scene_.log();
  expect_restored(tasks);
}

// The hook that a dump begins in comes in a pre-dump, too, and is none of its own.
TEST_F(Criu40Test, APreDumpBeginsWhereItDoesInOtherVersions) {
  ASSERT_NO_FATAL_FAILURE(start());
  scene_.variables["SLUICE_PREDUMP"] = "off";
  EXPECT_EQ(scene_.start_host(kCriu40.name, "pre-dump", {}).wait(), 0) << scene_.log();
  expect_untouched();
  EXPECT_TRUE(images("amdgpu-").empty());
  scene_.variables.erase("SLUICE_PREDUMP");
  EXPECT_EQ(scene_.start_host(kCriu40.name, "pre-dump", {}).wait(), 0) << scene_.log();
  EXPECT_TRUE(images("amdgpu-").contains("amdgpu-predump.img"));
  expect_running();
}

}  // namespace
}  // namespace sluice::plugin_test
