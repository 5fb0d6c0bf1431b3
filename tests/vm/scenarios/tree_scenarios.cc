// SPDX-License-Identifier: MIT
// A tree of processes, each with GPU state of its own on the same two GPUs, below a parent that has none: all
// of it comes back, the processes' contents flow at once, and what is wrong with one keeps all from running.
#include <list>

#include "scenario.h"
#include "support/flip_byte.h"
#include "support/plugin_statistics.h"

namespace sluice::vm_test {
namespace {

constexpr unsigned kProcesses = 4;
constexpr std::uint64_t kSlowBytesPerSecond =
    8 << 20;  // so that contents take seconds, however fast the guest is

class Tree : public Scenario {
 protected:
  void SetUp() override {
    Scenario::SetUp();
    load();
  }
  void TearDown() override {
    if (root_ > 0) kill_and_reap(root_);  // its children are ours then
    tasks_.clear();
    Scenario::TearDown();
  }

  // A shell that starts the processes and waits for them.
  void start_tree(const Strings& options) {
    std::string script;
    for (unsigned i = 0; i < kProcesses; ++i) {
      tasks_.emplace_back(scratch() / ("task" + std::to_string(i)));
      script +=
          (settings().programs / "gpu-subject").string() + " --control " + tasks_.back().directory().string();
      for (const std::string& option : with_common_options(options)) script += " " + option;
      script += " --seed " + std::to_string(i + 1) + " & ";
    }
    Launch launch;
    launch.arguments = {"sh", "-c", script + "wait"};
    launch.own_session = true;
    root_ = vm_test::start(launch);
    for (GuestSubject& task : tasks_) {
      const std::string ready = task.meet();
      ASSERT_EQ(ready.rfind("ready", 0), 0U) << "a process said: " << ready;
    }
  }

  void slow_down() {
    for (const unsigned gpu : {0U, 1U}) control().set_engine_rate(gpu, kSlowBytesPerSecond);
  }
  void full_speed() {
    for (const unsigned gpu : {0U, 1U}) control().set_engine_rate(gpu, 0);
  }

  CriuRun dump_tree(const Strings& more = {}) {
    CriuRun run = criu_->dump(root_, images(), more);
    if (run.good() && more.empty()) {
      EXPECT_TRUE(wait_for(root_).has_value());
      EXPECT_TRUE(eventually([] { return living_children().empty(); })) << "a dumped process still runs";
    }
    return run;
  }

  void expect_all_whole() {
    for (GuestSubject& task : tasks_) {
      for (const char* command : {"check", "work", "check"}) {
        const std::string answer = task.ask(command);
        ASSERT_EQ(answer.rfind(std::string("ok ") + command, 0), 0U) << answer;
      }
    }
  }

  void quit_all() {
    for (GuestSubject& task : tasks_) {
      EXPECT_EQ(task.ask("quit"), "ok quit");
      task.forget();
    }
    EXPECT_EQ(wait_for(root_), 0);
    root_ = 0;
  }

  test::PluginStatistics statistics(const std::string& direction) const {
    return test::plugin_statistics(images(), direction);
  }

  std::list<GuestSubject> tasks_;
  pid_t root_ = 0;
};

const Strings kProcess = {"--gpus", "2", "--vram", "6M", "--gtt", "1M", "--run-queues"};

TEST_F(Tree, OfFourProcessesOnTwoGpusComesBackWhole) {
  ASSERT_NO_FATAL_FAILURE(start_tree(kProcess));
  ASSERT_NO_FATAL_FAILURE(expect_all_whole());
  slow_down();
  ASSERT_TRUE(dump_tree().good());
  const auto dumped = statistics("dump");
  EXPECT_EQ(dumped.size(), kProcesses);
  if (criu_traits().begins_when_frozen) {
    EXPECT_TRUE(test::all_at_once(dumped)) << "the processes were dumped one after another";
    EXPECT_TRUE(test::begun_before_joined(dumped));
  }
  ASSERT_TRUE(criu_->restore(images()).good());
  full_speed();
  const auto restored = statistics("restore");
  EXPECT_EQ(restored.size(), kProcesses);
  if (criu_traits().has_content_server) {
    EXPECT_TRUE(test::all_at_once(restored)) << "the processes were restored one after another";
    EXPECT_TRUE(test::begun_before_joined(restored));
  }
  ASSERT_NO_FATAL_FAILURE(expect_all_whole());
  quit_all();
}

TEST_F(Tree, DumpedTwiceAndLeftRunningGoesOn) {
  ASSERT_NO_FATAL_FAILURE(start_tree(kProcess));
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(dump_tree({"--leave-running"}).good());
    ASSERT_NO_FATAL_FAILURE(expect_all_whole());
  }
  for (GuestSubject& task : tasks_) {
    const auto process = control().process(task.pid());
    ASSERT_TRUE(process.has_value());
    EXPECT_FALSE(process->queues_paused);
  }
  quit_all();
}

TEST_F(Tree, WithParallelOffIsDumpedOneAfterAnotherAndComesBack) {
  criu_->environment["SLUICE_PARALLEL"] = "off";
  ASSERT_NO_FATAL_FAILURE(start_tree(kProcess));
  ASSERT_TRUE(dump_tree().good());
  EXPECT_FALSE(test::all_at_once(statistics("dump")));
  ASSERT_TRUE(criu_->restore(images()).good());
  ASSERT_NO_FATAL_FAILURE(expect_all_whole());
  quit_all();
}

TEST_F(Tree, WhoseDumpFailsInOneProcessRunsOn) {
  ASSERT_NO_FATAL_FAILURE(start_tree(kProcess));
  // One CHECKPOINT in the middle of the dump.
  control().inject({.nr = 0x22, .op = 1, .error = ENOMEM, .skip = 2});
  EXPECT_FALSE(dump_tree().good());
  control().clear_faults();
  ASSERT_NO_FATAL_FAILURE(expect_all_whole());
  ASSERT_NO_FATAL_FAILURE(expect_no_complete_image(images()));
  ASSERT_TRUE(dump_tree().good());
  ASSERT_TRUE(criu_->restore(images()).good());
  ASSERT_NO_FATAL_FAILURE(expect_all_whole());
  quit_all();
}

TEST_F(Tree, WithACorruptBlockInOneProcessNeverRuns) {
  ASSERT_NO_FATAL_FAILURE(start_tree(kProcess));
  ASSERT_TRUE(dump_tree().good());
  std::filesystem::path pages;
  for (const auto& entry : std::filesystem::directory_iterator(images())) {
    if (entry.path().filename().string().starts_with("amdgpu-pages-")) pages = entry.path();
  }
  ASSERT_FALSE(pages.empty());
  const std::uint64_t middle = std::filesystem::file_size(pages) / 2;
  test::flip_byte(pages, middle);
  for (GuestSubject& task : tasks_) task.say("check");  // a task that runs for a moment answers
  const CriuRun run = criu_->restore(images());
  EXPECT_NE(run.status, 0);
  EXPECT_TRUE(run.said(pages.filename().string()));
  EXPECT_TRUE(eventually([] { return living_children().empty(); }, Seconds(20))) << "a task lives";
  for (GuestSubject& task : tasks_) EXPECT_FALSE(task.has_spoken()) << "a task ran";
  test::flip_byte(pages, middle);
  ASSERT_TRUE(criu_->restore(images()).good());
  for (GuestSubject& task : tasks_) EXPECT_EQ(task.hear().rfind("ok check", 0), 0U);
  quit_all();
}

}  // namespace
}  // namespace sluice::vm_test
