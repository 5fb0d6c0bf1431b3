// SPDX-License-Identifier: MIT
// A tree of processes, each with GPU state of its own on the same two GPUs, below a parent that has none. All
// of it comes back, and the processes' contents flow at the same time. A failure of one, or of criu, keeps
// all from running.
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <list>

#include "answered_ioctl.h"
#include "base/unique_fd.h"
#include "scenario.h"
#include "streamer.h"
#include "support/flip_byte.h"
#include "support/plugin_statistics.h"

namespace sluice::vm_test {
namespace {

constexpr unsigned kProcesses = 4;
constexpr std::uint64_t kSlowBytesPerSecond =
    8 << 20;  // so that contents take seconds, however fast the guest is

constexpr unsigned kResumeDevicesLate = 9;  // hook (criu-plugin.h)

const Strings kProcess = {"--gpus", "2", "--vram", "6M", "--gtt", "1M", "--run-queues"};

// Where it is restored, but not yet by criu's last, small program, which has no plugin.
bool is_in_plugin(pid_t pid) {
  return read_file("/proc/" + std::to_string(pid) + "/maps").find("amdgpu_plugin.so") != std::string::npos;
}

// Whether a task that is in the plugin leaves it, as it must when criu is dead. Either it ends, which is an
// event. Or it goes to criu's last program, where it waits for criu for ever, and nothing tells of that.
bool leaves_the_plugin(pid_t pid) {
  constexpr int kLookAgainMs = 200;
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return true;
  pollfd end{process.get(), POLLIN, 0};
  for (auto left_ms = std::chrono::milliseconds(kPatience).count(); left_ms > 0; left_ms -= kLookAgainMs) {
    if (!is_in_plugin(pid)) return true;
    (void)::poll(&end, 1, kLookAgainMs);
  }
  return false;
}

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
  void start_tree(const Strings& options, unsigned processes = kProcesses) {
    std::string script;
    for (unsigned i = 0; i < processes; ++i) {
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
    for (const unsigned gpu : {0U, 1U}) machine().set_engine_rate(gpu, kSlowBytesPerSecond);
  }
  void full_speed() {
    for (const unsigned gpu : {0U, 1U}) machine().set_engine_rate(gpu, 0);
  }

  CriuRun dump_tree(const Strings& more = {}, const std::string& into = "images") {
    CriuRun run = criu_->dump(root_, images(into), more);
    if (run.good() && std::find(more.begin(), more.end(), "--leave-running") == more.end()) {
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

  std::vector<Strings> possessions_of_all() {
    std::vector<Strings> all;
    for (const GuestSubject& task : tasks_) all.push_back(possessions_of(task.pid()));
    return all;
  }

  // A task that runs for a moment answers.
  void ask_all() {
    for (GuestSubject& task : tasks_) task.say("check");
  }
  void dump_and_ask() {
    ASSERT_NO_FATAL_FAILURE(start_tree(kProcess));
    ASSERT_TRUE(dump_tree().good());
    ask_all();
  }

  // A criu whose first task's contents are on their way.
  pid_t start_slow_restore() {
    slow_down();
    const std::uint64_t fences = machine().copies_begun(0);
    const pid_t criu = vm_test::start(criu_->command("restore", images(), {"-d"}));
    EXPECT_TRUE(eventually([&] {
      return machine().process(tasks_.front().pid()).has_value() && machine().copies_begun(0) > fences;
    })) << "no contents flow";
    return criu;
  }

  // Of a restoring criu: after this point, a task runs when its tracer dies.
  bool stops_a_task(const SystemCall& call) const {
    const auto pid = static_cast<pid_t>(call.arguments[1]);
    return call.number == SYS_ptrace && call.arguments[0] == PTRACE_SEIZE &&
           (pid == root_ || std::any_of(tasks_.begin(), tasks_.end(),
                                        [pid](const GuestSubject& task) { return task.pid() == pid; }));
  }

  void expect_never_ran() {
    EXPECT_TRUE(eventually([] { return living_children().empty(); }, Seconds(20))) << "a task lives";
    for (GuestSubject& task : tasks_) EXPECT_FALSE(task.has_spoken()) << "a task ran";
  }
  // Once the cause is gone, the questions that waited all the time are answered.
  void expect_restores_now() {
    ASSERT_TRUE(criu_->restore(images()).good());
    for (GuestSubject& task : tasks_) EXPECT_EQ(task.hear().rfind("ok check", 0), 0U);
    quit_all();
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

TEST_F(Tree, OfFourProcessesOnTwoGpusComesBackWhole) {
  ASSERT_NO_FATAL_FAILURE(start_tree(kProcess));
  ASSERT_NO_FATAL_FAILURE(expect_all_whole());
  const std::vector<Strings> possessions = possessions_of_all();
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
  EXPECT_EQ(possessions_of_all(), possessions) << "the restore added something, or lost it";
  ASSERT_NO_FATAL_FAILURE(expect_all_whole());
  quit_all();
}

TEST_F(Tree, DumpedTwiceAndLeftRunningGoesOn) {
  ASSERT_NO_FATAL_FAILURE(start_tree(kProcess));
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(dump_tree({"--leave-running"}).good());
    ASSERT_NO_FATAL_FAILURE(expect_all_whole());
  }
  quit_all();
}

TEST_F(Tree, ComesBackOutOfAStream) {
  // On the disk, and of fewer processes: the streamer has all of the image in memory when it serves.
  Streamer streamer(images(), images("streamed") / "image");
  ASSERT_NO_FATAL_FAILURE(start_tree(kProcess, 2));
  const std::vector<Strings> possessions = possessions_of_all();
  ASSERT_EQ(streamer.begin("capture"), "");
  ASSERT_TRUE(dump_tree({"--stream"}).good());
  EXPECT_TRUE(streamer.ended());
  ASSERT_EQ(streamer.begin("serve"), "");
  ASSERT_TRUE(criu_->restore(images(), {"--stream"}).good());
  EXPECT_EQ(possessions_of_all(), possessions) << "the restore added something, or lost it";
  ASSERT_NO_FATAL_FAILURE(expect_all_whole());
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
  {
    const AnsweredIoctl refusal = refused_criu_op(kCheckpoint, ENOMEM, 2);  // in the middle of the dump
    criu_->prepare = [&] { refusal.watch_this_process(); };
    const CriuRun failed = dump_tree({}, "failed");
    EXPECT_NE(failed.status, 0);
    EXPECT_TRUE(failed.plugin_said("CHECKPOINT of process")) << "the reason is not said";
  }
  criu_->prepare = {};
  ASSERT_NO_FATAL_FAILURE(expect_all_whole());
  ASSERT_TRUE(dump_tree().good());
  ASSERT_TRUE(criu_->restore(images()).good());
  ASSERT_NO_FATAL_FAILURE(expect_all_whole());
  quit_all();
  // Not while the tasks live: their pids alone would refuse a restore.
  expect_no_complete_image(images("failed"));
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
  ask_all();
  const CriuRun run = criu_->restore(images());
  EXPECT_NE(run.status, 0);
  EXPECT_TRUE(run.plugin_said(pages.filename().string()));
  ASSERT_NO_FATAL_FAILURE(expect_never_ran());
  test::flip_byte(pages, middle);
  expect_restores_now();
}

TEST_F(Tree, OfWhichOneCannotBeResumedNeverRuns) {
  ASSERT_NO_FATAL_FAILURE(dump_and_ask());
  {
    const AnsweredIoctl refusal = refused_criu_op(kResume, EINVAL, 2);
    criu_->prepare = [&] { refusal.watch_this_process(); };
    const CriuRun run = criu_->restore(images());
    EXPECT_NE(run.status, 0);
    EXPECT_TRUE(run.plugin_said("RESUME of process")) << "the reason is not said";
    ASSERT_NO_FATAL_FAILURE(expect_never_ran());
  }
  criu_->prepare = {};
  expect_restores_now();
}

TEST_F(Tree, OfWhichOneIsKilledWhileContentsFlowNeverRuns) {
  if (criu_traits().has_content_server)
    GTEST_SKIP() << "its contents flow behind its back, when this criu does not look after it";
  ASSERT_NO_FATAL_FAILURE(dump_and_ask());
  const pid_t criu = start_slow_restore();
  ASSERT_EQ(::kill(tasks_.front().pid(), SIGKILL), 0);
  const auto status = wait_for(criu);
  ASSERT_TRUE(status.has_value()) << "criu restore hangs";
  EXPECT_NE(status, 0);
  full_speed();
  ASSERT_NO_FATAL_FAILURE(expect_never_ran());
  expect_restores_now();
}

// ---- criu killed while it restores. What is left of the tree waits for criu for ever, or is dead; it does
// not run.

TEST_F(Tree, WhoseCriuIsKilledWhileContentsFlowNeverRuns) {
  ASSERT_NO_FATAL_FAILURE(dump_and_ask());
  if (criu_traits().has_content_server) {
    // At its last stop of the tasks, which have everything but their contents.
    slow_down();
    const std::uint64_t fences = machine().copies_begun(0);
    StoppedCriu criu(criu_->command("restore", images(), {"-d"}));
    ASSERT_TRUE(
        criu.run_until([this](const SystemCall& call) { return call.entering && stops_a_task(call); }));
    EXPECT_TRUE(eventually([&] { return machine().copies_begun(0) > fences; })) << "no contents flow";
  } else {  // it waits for the tasks, and they for theirs
    kill_and_reap(start_slow_restore());
  }
  full_speed();
  for (const GuestSubject& task : tasks_)
    EXPECT_TRUE(leaves_the_plugin(task.pid())) << "a task waits in the plugin";
  // Who is left is nobody's child but ours, or becomes so.
  EXPECT_TRUE(eventually([] {
    for (const pid_t left : living_children()) (void)::kill(left, SIGKILL);
    return living_children().empty();
  }));
  ASSERT_NO_FATAL_FAILURE(expect_never_ran());
  expect_restores_now();
}

// All tasks are stopped one step before they run, and the kernel lets them go when their tracer dies.
class TreeWhoseCriuIsKilled : public Tree {
 protected:
  // The last point before the hook waits for contents: the shell is held, too.
  static std::function<bool(const SystemCall&)> held() {
    return [left = kProcesses + 1](const SystemCall& call) mutable {
      return !call.entering && call.number == SYS_ptrace && call.arguments[0] == PTRACE_SETOPTIONS &&
             call.arguments[3] == PTRACE_O_EXITKILL && --left == 0;
    };
  }
  void expect_nothing_runs_after(const std::vector<std::function<bool(const SystemCall&)>>& way) {
    {
      StoppedCriu criu(criu_->command("restore", images(), {"-d"}));
      for (const auto& step : way) ASSERT_TRUE(criu.run_until(step)) << "criu ended before that point";
    }  // killed
    full_speed();
    ASSERT_NO_FATAL_FAILURE(expect_never_ran());
    expect_restores_now();
  }
};

TEST_F(TreeWhoseCriuIsKilled, WhileTheHookWaitsForContentsNeverRuns) {
  if (!criu_traits().has_content_server) GTEST_SKIP() << "this criu's hook waits for no contents";
  ASSERT_NO_FATAL_FAILURE(dump_and_ask());
  slow_down();
  const auto waiting = [](const SystemCall& call) { return call.entering && call.number == SYS_futex; };
  expect_nothing_runs_after({before_hook(kResumeDevicesLate), held(), waiting});
}

// Here it is a task that is killed, and criu lives.
TEST_F(TreeWhoseCriuIsKilled, OrLosesATaskWhileTheHookWaitsNeverRuns) {
  if (!criu_traits().has_content_server) GTEST_SKIP() << "this criu's hook waits for no contents";
  ASSERT_NO_FATAL_FAILURE(dump_and_ask());
  slow_down();
  {
    StoppedCriu criu(criu_->command("restore", images(), {"-d"}));
    ASSERT_TRUE(criu.run_until(before_hook(kResumeDevicesLate)));
    ASSERT_TRUE(criu.run_until(held()));
    ASSERT_EQ(::kill(tasks_.front().pid(), SIGKILL), 0);
    full_speed();
    EXPECT_FALSE(criu.run_until([](const SystemCall&) { return false; })) << "it ends by itself";
  }
  EXPECT_TRUE(criu_->last_run().plugin_said("[SL-R06]")) << "the reason is not said";
  ASSERT_NO_FATAL_FAILURE(expect_never_ran());
  expect_restores_now();
}

TEST_F(TreeWhoseCriuIsKilled, BeforeAnyTaskIsResumedNeverRuns) {
  ASSERT_NO_FATAL_FAILURE(dump_and_ask());
  expect_nothing_runs_after({before_hook(kResumeDevicesLate), criu_op(kResume, true)});
}

TEST_F(TreeWhoseCriuIsKilled, WhenOneTaskIsResumedNeverRuns) {
  ASSERT_NO_FATAL_FAILURE(dump_and_ask());
  const auto resumed = [left = criu_op(kResume, false)](const SystemCall& call) {
    return left(call) && call.result == 0;
  };
  expect_nothing_runs_after({before_hook(kResumeDevicesLate), resumed});
}

}  // namespace
}  // namespace sluice::vm_test
