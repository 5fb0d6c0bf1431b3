// SPDX-License-Identifier: MIT
// GPU kernels that run when their queues are stopped, on a Linux that does not save their waves (7.2, which
// the machine resembles). A dump lets them end, or refuses; all queues run afterwards.
#include <sched.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "lookalike/task_tree.h"
#include "plugin_test.h"
#include "support/plugin_statistics.h"

namespace sluice::plugin_test {
namespace {

using lookalike::TaskTree;
using vamdgpu::Control;
using vamdgpu::Waves;

constexpr std::uint32_t kLinux612 = 17;  // minor version of its KFD

class WavesTest : public PluginTest {
 protected:
  WavesTest() {
    // No dump that is to succeed is short of time, and one that waits for ever does not end by itself.
    scene_.variables["SLUICE_WAVES_TIMEOUT"] = "3600";
  }

  void start_with_kernels(Waves waves, std::uint32_t stops, const Strings& more = {}) {
    ASSERT_NO_FATAL_FAILURE(start(more));
    scene_.control().run_kernels(scene_.subject_pid(), waves, stops);
  }
  std::string refused_dump(const Strings& more = {}) {
    EXPECT_EQ(scene_.dump(version(), more), 1);
    EXPECT_TRUE(images("amdgpu-").empty());
    return scene_.log();
  }
  // A plugin also asks with a CHECKPOINT that cannot begin whether two files are of one process.
  std::size_t checkpoints() {
    std::size_t made = 0;
    for (const vamdgpu::TracedCall& call : scene_.control().trace())
      made += call.name == "KFD_CRIU_OP:CHECKPOINT" && call.result == 0 ? 1 : 0;
    return made;
  }
  std::uint32_t stops(pid_t pid) { return scene_.control().process(pid)->process_infos; }

  // A tree of two, the first of which has no GPU if `plain`.
  static void start_two(TaskTree& tasks, bool plain = false) {
    const Strings gpu = {"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--svm-context"};
    for (const bool first : {true, false}) {
      const std::string ready = tasks.add(first && plain ? Strings{"--plain"} : gpu);
      ASSERT_TRUE(ready.starts_with("ready")) << ready;
    }
  }
};

TEST_P(WavesTest, KernelsThatEndAreWaitedFor) {
  ASSERT_NO_FATAL_FAILURE(start_with_kernels(Waves::Saved, 3));
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  EXPECT_EQ(scene_.control().criu_calls(kProcessInfo), 4U);
  EXPECT_EQ(checkpoints(), 4U);
  EXPECT_EQ(scene_.log().find("[SL-"), std::string::npos);
  scene_.wait_until_subject_is_gone();
  restore_and_check();
}

// Turns of 10, 20 and 40 ms.
TEST_P(WavesTest, TheWaitCountsAsFrozenTime) {
  ASSERT_NO_FATAL_FAILURE(start_with_kernels(Waves::Saved, 3));
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  const test::PluginStatistics statistics = test::plugin_statistics(scene_.images(), "dump");
  ASSERT_FALSE(statistics.empty());
  EXPECT_GE(statistics.front().at("frozen_seconds").get<double>(), 0.07);
}

TEST_P(WavesTest, KernelsThatDoNotEndInTimeRefuseTheDump) {
  scene_.variables["SLUICE_WAVES_TIMEOUT"] = "1";
  ASSERT_NO_FATAL_FAILURE(start_with_kernels(Waves::Saved, Control::kForEver));
  const std::string log = refused_dump();
  EXPECT_NE(log.find("[SL-D85]"), std::string::npos) << log;
  EXPECT_GT(stops(scene_.subject_pid()), 1U);
  expect_running();
}

TEST_P(WavesTest, WithoutTimeToWaitTheDumpIsRefusedAtOnce) {
  scene_.variables["SLUICE_WAVES_TIMEOUT"] = "0";
  ASSERT_NO_FATAL_FAILURE(start_with_kernels(Waves::Saved, Control::kForEver));
  EXPECT_NE(refused_dump().find("[SL-D85]"), std::string::npos);
  EXPECT_EQ(stops(scene_.subject_pid()), 1U);
  expect_running();
}

TEST_P(WavesTest, ASettingLetsTheDumpGoOn) {
  scene_.variables["SLUICE_WAVES_TIMEOUT"] = "0";
  scene_.variables["SLUICE_LOST_WAVES"] = "warn";
  ASSERT_NO_FATAL_FAILURE(start_with_kernels(Waves::Saved, Control::kForEver));
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  EXPECT_NE(scene_.log().find("[SL-D88]"), std::string::npos);
  scene_.wait_until_subject_is_gone();
  restore_and_check();
  const std::string log = scene_.log();
  EXPECT_NE(log.find("[SL-R85]"), std::string::npos) << log;
  EXPECT_NE(log.find("[SL-R86]"), std::string::npos) << log;
}

TEST_P(WavesTest, WordsOnTheControlStackAloneAreAWarning) {
  ASSERT_NO_FATAL_FAILURE(start_with_kernels(Waves::Words, Control::kForEver));
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  EXPECT_EQ(scene_.control().criu_calls(kProcessInfo), 1U);
  EXPECT_NE(scene_.log().find("[SL-D86]"), std::string::npos);
  scene_.wait_until_subject_is_gone();
  restore_and_check();
}

TEST_P(WavesTest, AProfilersHoldOnTheCountersIsAWarning) {
  ASSERT_NO_FATAL_FAILURE(start_with_kernels(Waves::Counted, Control::kForEver));
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  EXPECT_EQ(scene_.control().criu_calls(kProcessInfo), 1U);
  EXPECT_NE(scene_.log().find("[SL-D89]"), std::string::npos);
  scene_.wait_until_subject_is_gone();
  restore_and_check();
}

TEST_P(WavesTest, AQueueThatHasGlobalWaveSyncIsRestoredWhileItIsIdle) {
  ASSERT_NO_FATAL_FAILURE(start({"--gws"}));
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  EXPECT_EQ(scene_.log().find("[SL-"), std::string::npos);
  scene_.wait_until_subject_is_gone();
  restore_and_check();
}

TEST_P(WavesTest, ValuesOfGlobalWaveSyncAreAWarningWhereAKernelRuns) {
  scene_.variables["SLUICE_WAVES_TIMEOUT"] = "0";
  ASSERT_NO_FATAL_FAILURE(start_with_kernels(Waves::Saved, Control::kForEver, {"--gws"}));
  EXPECT_NE(refused_dump().find("[SL-D87]"), std::string::npos);
  expect_running();
}

// Their control stack lies in memory of the process.
TEST_P(WavesTest, NewerFamiliesLoseNothing) {
  ASSERT_NO_FATAL_FAILURE(start_with_kernels(Waves::Saved, Control::kForEver));
  const std::string gfx9 = "gfx_target_version 90010", gfx10 = "gfx_target_version 100300";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(scene_.machine().directory())) {
    if (entry.path().filename() != "properties") continue;
    std::string text = read_file(entry.path());
    if (const std::size_t at = text.find(gfx9); at != std::string::npos) text.replace(at, gfx9.size(), gfx10);
    std::ofstream(entry.path()) << text;
  }
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  EXPECT_EQ(scene_.control().criu_calls(kProcessInfo), 1U);
  EXPECT_EQ(scene_.log().find("[SL-"), std::string::npos);
}

// And CHECKPOINT is issued for both anew.
TEST_P(WavesTest, TheProcessesOfATreeRunOnTogether) {
  TaskTree tasks(scene_);
  ASSERT_NO_FATAL_FAILURE(start_two(tasks));
  scene_.control().run_kernels(tasks.back().pid(), Waves::Saved, 2);
  ASSERT_EQ(scene_.dump(version(), tasks.with_pids()), 0) << scene_.log();
  tasks.wait_until_dumped();
  EXPECT_EQ(scene_.control().criu_calls(kProcessInfo), 6U);
  EXPECT_EQ(checkpoints(), 6U);
  EXPECT_EQ(scene_.log().find("[SL-"), std::string::npos);
  ASSERT_EQ(scene_.start_host(version(), "restore", {}).wait(), 0) << scene_.log();
  ASSERT_TRUE(tasks.meet_restored());
  EXPECT_EQ(tasks.what_is_not_whole(), "");
  EXPECT_EQ(tasks.who_does_not_quit(), "");
}

TEST_P(WavesTest, AfterARefusalAllProcessesOfTheTreeRun) {
  scene_.variables["SLUICE_WAVES_TIMEOUT"] = "0";
  TaskTree tasks(scene_);
  ASSERT_NO_FATAL_FAILURE(start_two(tasks));
  scene_.control().run_kernels(tasks.front().pid(), Waves::Saved, Control::kForEver);
  EXPECT_NE(refused_dump(tasks.with_pids()).find("[SL-D85]"), std::string::npos);
  for (FifoSubject& task : tasks) expect_queues_run(task.pid());
  EXPECT_EQ(tasks.what_is_not_whole(), "");
  EXPECT_EQ(tasks.who_does_not_quit(), "");
}

// Hosts that call CHECKPOINT_DEVICES do so before they read memory. Older ones have read that of the first
// process by the time they ask for the second one's files.
TEST_P(WavesTest, ATreeThatBeginsWithoutAGpuIsWaitedForWhereNoMemoryWasRead) {
  TaskTree tasks(scene_);
  ASSERT_NO_FATAL_FAILURE(start_two(tasks, true));
  scene_.control().run_kernels(tasks.back().pid(), Waves::Saved, 2);
  const bool waits = hooks() >= 12;
  EXPECT_EQ(scene_.dump(version(), tasks.with_pids({"--leave-running"})), waits ? 0 : 1) << scene_.log();
  EXPECT_EQ(stops(tasks.back().pid()), waits ? 3U : 1U);
  EXPECT_EQ(scene_.log().find("[SL-D85]") == std::string::npos, waits);
  expect_queues_run(tasks.back().pid());
}

TEST_P(WavesTest, WithoutParallelismTheFirstProcessIsWaitedFor) {
  scene_.variables["SLUICE_PARALLEL"] = "off";
  ASSERT_NO_FATAL_FAILURE(start_with_kernels(Waves::Saved, 2));
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  EXPECT_EQ(scene_.control().criu_calls(kProcessInfo), 3U);
  scene_.wait_until_subject_is_gone();
  restore_and_check();
}

TEST_P(WavesTest, ASignalEndsTheWait) {
  (void)::signal(SIGTERM, SIG_DFL);
  ASSERT_NO_FATAL_FAILURE(start_with_kernels(Waves::Saved, Control::kForEver));
  Program host = scene_.start_host(version(), "dump", {});
  while (stops(scene_.subject_pid()) < 2 && !host.has_ended()) (void)::sched_yield();
  ASSERT_EQ(::kill(host.pid(), SIGTERM), 0);
  EXPECT_EQ(host.wait(), 128 + SIGTERM) << scene_.log();
  EXPECT_TRUE(images("amdgpu-").empty());
  expect_running();
}

TEST_P(WavesTest, APreDumpTakesNoNotice) {
  ASSERT_NO_FATAL_FAILURE(start_with_kernels(Waves::Saved, Control::kForEver));
  ASSERT_EQ(scene_.start_host(version(), "pre-dump", {}).wait(), 0) << scene_.log();
  EXPECT_EQ(stops(scene_.subject_pid()), 1U);
  EXPECT_TRUE(images("amdgpu-predump").contains("amdgpu-predump.img"));
  expect_running();
}

TEST_P(WavesTest, AnUnpauseThatFailsEndsTheDump) {
  ASSERT_NO_FATAL_FAILURE(start_with_kernels(Waves::Saved, Control::kForEver));
  scene_.control().inject({.device = vamdgpu::On::Kfd,
                           .nr = kCriuNr,
                           .op = static_cast<int>(kUnpause),
                           .error = EIO,
                           .skip = 1});  // the one for an older dump's pause
  const std::string log = refused_dump();
  EXPECT_NE(log.find("[SL-G11]"), std::string::npos) << log;
  expect_running();
}

// This kernel's RESTORE would refuse them, after the job has ended.
TEST_P(WavesTest, QueuesOfAGpuWithSeveralDiesAreRefused) {
  vamdgpu::MachineOptions options = small_machine();
  options.preset = vamdgpu::Preset::Mi300x;
  scene_.move_to(options);
  ASSERT_NO_FATAL_FAILURE(start({"--svm-context"}));
  EXPECT_NE(refused_dump().find("[SL-D97]"), std::string::npos);
  expect_running();
  scene_.variables["SLUICE_LOST_WAVES"] = "warn";
  ASSERT_EQ(scene_.dump(version()), 0) << scene_.log();
  EXPECT_NE(scene_.log().find("[SL-D98]"), std::string::npos);
  scene_.wait_until_subject_is_gone();
  EXPECT_EQ(scene_.restore(version()), 1);
  EXPECT_NE(scene_.log().find("RESTORE"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Versions, WavesTest, ::testing::ValuesIn(kVersions), name_of_version);

// Its alarm is running when it calls the hook, which waits no longer than that would.
class WavesUnderTheAlarmTest : public SceneTest {};

TEST_F(WavesUnderTheAlarmTest, TheAlarmEndsTheWait) {
  scene_.variables["SLUICE_WAVES_TIMEOUT"] = "3600";
  ASSERT_NO_FATAL_FAILURE(start());
  scene_.control().run_kernels(scene_.subject_pid(), Waves::Saved, Control::kForEver);
  EXPECT_EQ(scene_.dump(kCriu40.name, {"--timeout-ms", "3000"}), 1);
  EXPECT_TRUE(scene_.has_logged("[SL-D85]")) << scene_.log();
  expect_running();
}

class WavesOnAnOlderKernelTest : public SceneTest {
 protected:
  static vamdgpu::MachineOptions machine() {
    vamdgpu::MachineOptions options = small_machine();
    options.kfd_minor_version = kLinux612;
    return options;
  }
  WavesOnAnOlderKernelTest() : SceneTest(machine()) {}
};

TEST_F(WavesOnAnOlderKernelTest, WavesThatTheKernelSavesAreNoHindrance) {
  ASSERT_NO_FATAL_FAILURE(start());
  scene_.control().run_kernels(scene_.subject_pid(), Waves::Saved, Control::kForEver);
  ASSERT_NO_FATAL_FAILURE(dump_with("4.2"));
  EXPECT_EQ(scene_.control().criu_calls(kProcessInfo), 1U);
  restore_and_check_with("4.2");
}

}  // namespace
}  // namespace sluice::plugin_test
