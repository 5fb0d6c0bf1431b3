// SPDX-License-Identifier: MIT
// Several processes with GPU state of their own on the same GPUs, in four hosts. Their contents flow at the
// same time where the host lets them, within one GPU's staging memory. A failure of one keeps all from
// running.
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "drm/sdma_copy.h"
#include "lookalike/task_tree.h"
#include "plugin_test.h"
#include "support/flip_byte.h"
#include "support/plugin_statistics.h"

namespace sluice::plugin_test {
namespace {

using lookalike::TaskTree;

constexpr unsigned kTasks = 4;
constexpr std::uint64_t kSlowBytesPerSecond = 4 * kMiB;

// Why a test is left out that has the host call exit() in a handler, as CRIU does; nullptr: it is not.
constexpr const char* kHandlersComeLate =
#ifdef __SANITIZE_THREAD__
    "ThreadSanitizer reports exit() in a handler, and puts handlers off to where the virtual driver holds "
    "its lock";
#else
    nullptr;
#endif

class TreeTest : public PluginTest {
 protected:
  void SetUp() override {
    for (unsigned i = 1; i <= kTasks; ++i) {
      const std::string ready = tasks_.add(
          {"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--svm-context", "--seed", std::to_string(i)});
      ASSERT_TRUE(ready.starts_with("ready")) << ready;
    }
  }

  void dump_tree() {
    ASSERT_EQ(scene_.dump(version(), tasks_.with_pids()), 0) << scene_.log();
    tasks_.wait_until_dumped();
  }

  int restore_tree() {
    const int status = scene_.start_host(version(), "restore", {}).wait();
    if (status == 0) {
      EXPECT_TRUE(tasks_.meet_restored());
    }
    return status;
  }

  // After a restore that failed or died: no task has said a word, and the same images restore.
  void expect_none_ran_and_restore() {
    tasks_.wait_until_gpus_are_free();
    EXPECT_FALSE(tasks_.one_has_spoken());
    ASSERT_EQ(restore_tree(), 0) << scene_.log();
    for (FifoSubject& task : tasks_) EXPECT_TRUE(task.hear().starts_with("ok check"));
    EXPECT_EQ(tasks_.who_does_not_quit(), "");
  }

  // After a dump that the death of the last one has ended.
  void expect_all_but_the_last_to_run() {
    for (FifoSubject& task : tasks_) {
      if (&task == &tasks_.back()) continue;
      expect_queues_run(task.pid());
      task.say("check");
      EXPECT_TRUE(task.hear().starts_with("ok check"));
    }
    EXPECT_TRUE(images("amdgpu-kfd-").empty());
  }

  // In the order in which they were forked.
  static std::vector<pid_t> children_of(pid_t pid) {
    std::istringstream text(
        read_file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children"));
    std::vector<pid_t> children;
    for (pid_t child = 0; text >> child;) children.push_back(child);
    return children;
  }

  // CRIU asks for one task after another, and lets them go one after another.
  void kill_while_others_are_resumed(unsigned task) {
    ASSERT_NO_FATAL_FAILURE(dump_tree());
    tasks_.say("check");
    Program host = scene_.start_host(version(), "restore", {"--hold", "first_resumed"});
    ASSERT_EQ(host.hear_control(), "first_resumed") << scene_.log();
    const std::vector<pid_t> children = children_of(host.pid());
    ASSERT_GE(children.size(), kTasks);
    ASSERT_EQ(::kill(children[task], SIGKILL), 0);
    host.release_control();
    EXPECT_EQ(host.wait(), 1);
    EXPECT_NE(scene_.log().find("[SL-R06]"), std::string::npos);
    expect_none_ran_and_restore();
  }

  void set_rate(std::uint64_t bytes_per_second) {
    for (const unsigned gpu : {0U, 1U}) scene_.control().set_engine_rate(gpu, bytes_per_second);
  }

  // A task goes on when it has asked the content server, whose thread then begins when it gets to run. No
  // context is restored: all that there are belong to lanes, two GPUs' of each task.
  void wait_until_all_lanes_flow() {
    while (scene_.control().counts().contexts < 2 * kTasks * drm::SdmaCopyOptions().contexts)
      (void)::sched_yield();
  }

  test::PluginStatistics statistics(const std::string& direction) const {
    return test::plugin_statistics(scene_.images(), direction);
  }

  // All files of one GPU together.
  static std::uint64_t pinned_per_gpu(const test::PluginStatistics& files) {
    std::map<std::uint32_t, std::uint64_t> pinned;
    for (const nlohmann::json& file : files) {
      for (const nlohmann::json& gpu : file["gpus"])
        pinned[gpu["gpu_id"]] += gpu["pinned_bytes"].get<std::uint64_t>();
    }
    std::uint64_t most = 0;
    for (const auto& [gpu, bytes] : pinned) most = std::max(most, bytes);
    return most;
  }

  TaskTree tasks_{scene_};
};

// The GPUs are too slow for any contents to be through before the host says that it is where all have begun.
TEST_P(TreeTest, FourProcessesFlowAtOnceAndComeBackIntact) {
  set_rate(kSlowBytesPerSecond);
  Program dumper = scene_.start_host(version(), "dump", tasks_.with_pids({"--hold", "checkpoint"}));
  ASSERT_EQ(dumper.hear_control(), "checkpoint") << scene_.log();
  set_rate(0);
  dumper.release_control();
  ASSERT_EQ(dumper.wait(), 0) << scene_.log();
  tasks_.wait_until_dumped();
  EXPECT_EQ(scene_.control().criu_calls(kProcessInfo), kTasks);
  const auto dumped = statistics("dump");
  ASSERT_EQ(dumped.size(), kTasks);
  if (hooks() >= 12) {
    EXPECT_TRUE(test::all_at_once(dumped));
    EXPECT_TRUE(test::begun_before_joined(dumped));
    EXPECT_LE(pinned_per_gpu(dumped), 64 * kMiB);
  }
  (void)scene_.log();
  set_rate(hooks() >= 13 ? kSlowBytesPerSecond : 0);
  Program restorer = scene_.start_host(version(), "restore", {"--hold", "seized"});
  ASSERT_EQ(restorer.hear_control(), "seized") << scene_.log();
  if (hooks() >= 13) wait_until_all_lanes_flow();
  set_rate(0);
  restorer.release_control();
  ASSERT_EQ(restorer.wait(), 0) << scene_.log();
  ASSERT_TRUE(tasks_.meet_restored());
  const auto restored = statistics("restore");
  ASSERT_EQ(restored.size(), kTasks);
  if (hooks() >= 13) {
    EXPECT_TRUE(test::all_at_once(restored));
    EXPECT_TRUE(test::begun_before_joined(restored));
  }
  EXPECT_LE(pinned_per_gpu(restored), 64 * kMiB);
  EXPECT_EQ(tasks_.what_is_not_whole(), "");
  EXPECT_EQ(tasks_.who_does_not_quit(), "");
}

// Staging memory for one lane of each GPU, and four processes on both. A lane has its contexts for as long as
// it has memory.
TEST_P(TreeTest, LanesWithoutStagingMemoryWaitForOthersToEnd) {
  scene_.variables["SLUICE_STAGING_SIZE"] = "2M";
  const std::uint32_t of_tasks = scene_.control().counts().contexts;
  const auto most_contexts = [&](Program host) {
    std::uint32_t most = 0;
    while (!host.has_ended()) most = std::max(most, scene_.control().counts().contexts);
    EXPECT_EQ(host.wait(), 0) << scene_.log();
    return most;
  };
  set_rate(8 * kSlowBytesPerSecond);
  const std::uint32_t most = 2 * drm::SdmaCopyOptions().contexts;
  EXPECT_LE(most_contexts(scene_.start_host(version(), "dump", tasks_.with_pids())), of_tasks + most);
  tasks_.wait_until_dumped();
  (void)scene_.log();
  const std::uint32_t restoring = most_contexts(scene_.start_host(version(), "restore", {}));
  if (hooks() >= 13) {  // else each task fills its own
    EXPECT_LE(restoring, of_tasks + most);
  }
  set_rate(0);
  ASSERT_TRUE(tasks_.meet_restored());
  EXPECT_EQ(tasks_.what_is_not_whole(), "");
  EXPECT_EQ(tasks_.who_does_not_quit(), "");
}

TEST_P(TreeTest, WithParallelOffOneProcessFlowsAfterAnother) {
  scene_.variables["SLUICE_PARALLEL"] = "off";
  ASSERT_NO_FATAL_FAILURE(dump_tree());
  EXPECT_FALSE(test::all_at_once(statistics("dump")));
  ASSERT_EQ(restore_tree(), 0) << scene_.log();
  EXPECT_EQ(tasks_.what_is_not_whole(), "");
  EXPECT_EQ(tasks_.who_does_not_quit(), "");
}

// The files of one process, finished, are not those of an earlier dump for the next.
TEST_P(TreeTest, DumpsOverTheFilesOfAnEarlierOne) {
  scene_.variables["SLUICE_REUSE"] = "on";
  scene_.variables["SLUICE_PARALLEL"] = "off";
  ASSERT_EQ(scene_.dump(version(), tasks_.with_pids({"--leave-running"})), 0) << scene_.log();
  EXPECT_EQ(tasks_.what_is_not_whole(), "");
  ASSERT_NO_FATAL_FAILURE(dump_tree());
  EXPECT_EQ(images("amdgpu-pages-").size(), 2 * kTasks);
  ASSERT_EQ(restore_tree(), 0) << scene_.log();
  EXPECT_EQ(tasks_.what_is_not_whole(), "");
  EXPECT_EQ(tasks_.who_does_not_quit(), "");
}

// Contents are under way when the dump fails: they stop, the queues run, nothing is left.
TEST_P(TreeTest, ADumpThatFailsWhileContentsFlowLeavesAllRunning) {
  set_rate(kSlowBytesPerSecond);
  EXPECT_EQ(scene_.dump(version(), tasks_.with_pids({"--fail-after", "checkpoint"})), 1) << scene_.log();
  set_rate(0);
  EXPECT_TRUE(images("amdgpu-").empty());
  for (const FifoSubject& task : tasks_) expect_queues_run(task.pid());
  EXPECT_EQ(tasks_.what_is_not_whole(), "");
  ASSERT_NO_FATAL_FAILURE(dump_tree());
  ASSERT_EQ(restore_tree(), 0) << scene_.log();
  EXPECT_EQ(tasks_.what_is_not_whole(), "");
}

TEST_P(TreeTest, ADumpThatIsKilledWhileContentsFlowIsFollowedByAGoodOne) {
  set_rate(kSlowBytesPerSecond);
  Program host = scene_.start_host(version(), "dump", tasks_.with_pids({"--hold", "checkpoint"}));
  ASSERT_EQ(host.hear_control(), "checkpoint");
  scene_.control().between_calls([&] { host.kill(); });
  set_rate(0);
  for (const std::string& name : images("amdgpu-")) EXPECT_TRUE(name.ends_with(".tmp")) << name;
  ASSERT_NO_FATAL_FAILURE(dump_tree());
  for (const std::string& name : images("amdgpu-")) EXPECT_FALSE(name.ends_with(".tmp")) << name;
  ASSERT_EQ(restore_tree(), 0) << scene_.log();
  EXPECT_EQ(tasks_.what_is_not_whole(), "");
}

// CRIU's handler of SIGCHLD ends it, on top of the hook that waits for contents; the others must not stand
// still for ever because of that.
TEST_P(TreeTest, ATaskThatDiesWhileContentsAreWaitedForEndsTheHostAndNoOther) {
  if (kHandlersComeLate) GTEST_SKIP() << kHandlersComeLate;
  set_rate(kSlowBytesPerSecond);
  Program host = scene_.start_host(version(), "dump", tasks_.with_pids());
  while (!scene_.has_logged("dump: ")) (void)::sched_yield();
  ASSERT_EQ(::kill(tasks_.back().pid(), SIGKILL), 0);
  EXPECT_EQ(host.wait(), 1) << scene_.log();
  set_rate(0);
  expect_all_but_the_last_to_run();
}

// The same on top of the hook that stops the queues, of one process after another.
TEST_P(TreeTest, ATaskThatDiesWhileQueuesAreStoppedEndsTheHostAndNoOther) {
  if (kHandlersComeLate) GTEST_SKIP() << kHandlersComeLate;
  const UniqueFd last(static_cast<int>(::syscall(SYS_pidfd_open, tasks_.back().pid(), 0)));
  Program host = scene_.start_host(version(), "dump", tasks_.with_pids());
  while (scene_.control().criu_calls(kProcessInfo) == 0) (void)::sched_yield();
  scene_.control().between_calls([&] {
    ASSERT_EQ(::kill(tasks_.back().pid(), SIGKILL), 0);
    pollfd dead{last.get(), POLLIN, 0};
    EXPECT_EQ(TEMP_FAILURE_RETRY(::poll(&dead, 1, -1)), 1);
  });
  EXPECT_EQ(host.wait(), 1) << scene_.log();
  expect_all_but_the_last_to_run();
}

// It comes in the hook that stops them, before the first.
TEST_P(TreeTest, NoQueuesAreStoppedAnyMoreWhenASignalHasCome) {
  const std::string before = hooks() >= 12 ? "seized" : "vmas";
  Program host = scene_.start_host(version(), "dump", tasks_.with_pids({"--hold", before}));
  ASSERT_EQ(host.hear_control(), before) << scene_.log();
  scene_.control().between_calls([&] {  // no call of the driver returns
    host.release_control();
    while (!host.has_thread("sluice-signals") && !host.has_ended()) (void)::sched_yield();
    ASSERT_EQ(::kill(host.pid(), SIGTERM), 0);
    while (!host.has_ended() && (host.has_pending(SIGTERM) || !host.thread_sleeps("sluice-signals")))
      (void)::sched_yield();
  });
  EXPECT_EQ(host.wait(), 128 + SIGTERM) << scene_.log();
  EXPECT_EQ(scene_.control().criu_calls(kProcessInfo), 0U);
  EXPECT_TRUE(images("amdgpu-").empty());
  for (const FifoSubject& task : tasks_) expect_queues_run(task.pid());
  EXPECT_EQ(tasks_.what_is_not_whole(), "");
}

TEST_P(TreeTest, ACorruptBlockOfOneKeepsAllFromRunning) {
  ASSERT_NO_FATAL_FAILURE(dump_tree());
  const std::string name = *images("amdgpu-pages-").rbegin();
  const std::filesystem::path pages = scene_.images() / name;
  const std::uint64_t middle = std::filesystem::file_size(pages) / 2;
  test::flip_byte(pages, middle);
  tasks_.say("check");
  EXPECT_NE(restore_tree(), 0);
  EXPECT_NE(scene_.log().find(name), std::string::npos);
  EXPECT_FALSE(tasks_.one_has_spoken());
  EXPECT_EQ(scene_.control().criu_calls(kResume), 0U);
  tasks_.wait_until_gpus_are_free();
  test::flip_byte(pages, middle);
  ASSERT_EQ(restore_tree(), 0) << scene_.log();
  for (FifoSubject& task : tasks_) EXPECT_TRUE(task.hear().starts_with("ok check"));
}

// Its contents are still on their way then, where the host has a content server.
TEST_P(TreeTest, ATaskThatDiesBeforeItRunsTakesAllWithIt) {
  ASSERT_NO_FATAL_FAILURE(dump_tree());
  tasks_.say("check");
  set_rate(kSlowBytesPerSecond);
  Program host = scene_.start_host(version(), "restore", {"--hold", "seized"});
  ASSERT_EQ(host.hear_control(), "seized") << scene_.log();
  const std::vector<pid_t> children = children_of(host.pid());
  ASSERT_FALSE(children.empty());
  ASSERT_EQ(::kill(children.front(), SIGKILL), 0);
  set_rate(0);
  host.release_control();
  EXPECT_EQ(host.wait(), 1) << scene_.log();
  EXPECT_FALSE(tasks_.one_has_spoken());
  expect_none_ran_and_restore();
}

TEST_P(TreeTest, ATaskThatDiesAfterItWasResumedTakesAllWithIt) {
  kill_while_others_are_resumed(0);
}

TEST_P(TreeTest, ATaskThatDiesWhileOthersAreResumedTakesAllWithIt) {
  kill_while_others_are_resumed(kTasks - 1);
}

// One of its tasks may be refused by the KFD when others have been resumed.
TEST_P(TreeTest, ATaskThatCannotBeResumedKeepsAllFromRunning) {
  ASSERT_NO_FATAL_FAILURE(dump_tree());
  tasks_.say("check");
  scene_.control().inject({.nr = kCriuNr, .op = static_cast<int>(kResume), .error = EINVAL, .skip = 2});
  EXPECT_EQ(restore_tree(), 1);
  scene_.control().clear_faults();
  expect_none_ran_and_restore();
}

// What is left of a restore whose main process is killed ends, and none of it runs.
class KilledRestoreTest : public TreeTest {
 protected:
  Program start_restore(const std::string& hold, std::uint64_t bytes_per_second = kSlowBytesPerSecond) {
    EXPECT_NO_FATAL_FAILURE(dump_tree());
    tasks_.say("check");
    scene_.control().clear_trace();
    fences_before_ = scene_.control().fences_made(0);
    (void)scene_.log();
    set_rate(bytes_per_second);
    Program host = scene_.start_host(version(), "restore", {"--hold", hold});
    EXPECT_EQ(host.hear_control(), hold) << scene_.log();
    return host;
  }
  void wait_until_contents_flow() {
    while (scene_.control().fences_made(0) == fences_before_) (void)::sched_yield();
  }
  void kill_and_expect_nothing_left(Program& host) {
    scene_.control().between_calls([&] { host.kill(); });
    scene_.control().release_hung_fences();
    scene_.control().clear_faults();
    set_rate(0);
    expect_none_ran_and_restore();
  }
  pid_t first_task_of(const Program& host) const {
    const std::string pid = std::to_string(host.pid());
    return std::atoi(read_file("/proc/" + pid + "/task/" + pid + "/children").c_str());
  }

 private:
  std::uint64_t fences_before_ = 0;
};

TEST_P(KilledRestoreTest, WhileContentsFlow) {
  Program host = start_restore("post_forking");
  wait_until_contents_flow();
  kill_and_expect_nothing_left(host);
}

TEST_P(KilledRestoreTest, WhileTasksAskForTheirContents) {
  Program host = start_restore("forked");  // there is no content server yet, and tasks wait for it
  while (scene_.control().criu_calls(kRestoreOp) < kTasks) (void)::sched_yield();
  kill_and_expect_nothing_left(host);
}

// The tasks are stopped, one step before they run, while the hook waits for their contents.
TEST_P(KilledRestoreTest, InResumeDevicesLate) {
  if (hooks() < 13) GTEST_SKIP() << "this host has no content server: the hook waits for nothing";
  Program host = start_restore("seized");
  // Their last fences, too, are still to come then.
  for (const unsigned gpu : {0U, 1U}) scene_.control().hang_fence(gpu, 0);
  host.release_control();
  while (!scene_.has_logged("restore: ")) (void)::sched_yield();  // it waits: that is its progress
  kill_and_expect_nothing_left(host);
}

TEST_P(KilledRestoreTest, AfterOneTaskWasResumed) {
  Program host = start_restore("first_resumed", 0);
  kill_and_expect_nothing_left(host);
}

TEST_P(KilledRestoreTest, ATaskThatIsKilledInRestoreExtFileTakesAllWithIt) {
  Program host = start_restore("forked");
  while (scene_.control().criu_calls(kRestoreOp) < kTasks) (void)::sched_yield();
  const pid_t first = first_task_of(host);
  ASSERT_GT(first, 0);
  const UniqueFd task(static_cast<int>(::syscall(SYS_pidfd_open, first, 0)));
  scene_.control().between_calls([&] {
    EXPECT_EQ(::kill(first, SIGKILL), 0);
    pollfd dead{task.get(), POLLIN, 0};
    EXPECT_EQ(TEMP_FAILURE_RETRY(::poll(&dead, 1, -1)), 1);
  });
  set_rate(0);
  host.release_control();
  EXPECT_EQ(host.wait(), 1) << scene_.log();
  expect_none_ran_and_restore();
}

INSTANTIATE_TEST_SUITE_P(Hosts, KilledRestoreTest, ::testing::ValuesIn(kVersions), name_of_version);
INSTANTIATE_TEST_SUITE_P(Hosts, TreeTest, ::testing::ValuesIn(kVersionsOfLongSuites), name_of_version);

}  // namespace
}  // namespace sluice::plugin_test
