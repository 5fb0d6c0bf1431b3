// SPDX-License-Identifier: MIT
// `sluice unpause PID` on a virtual machine: a process whose queues a killed dump has left paused, and
// everybody who must not be touched.
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <filesystem>
#include <fstream>
#include <thread>

#include "control.h"
#include "made_images.h"
#include "proc/task_status.h"

namespace sluice::cli_test {
namespace {

using lookalike::Program;

constexpr std::uint32_t kCriuNr = 0x22;
constexpr int kUnpauseOp = 2;

vamdgpu::MachineOptions that_evicts_once() {
  vamdgpu::MachineOptions options = small_machine();
  options.evict_once = true;
  return options;
}

class UnpauseTest : public ::testing::Test {
 protected:
  explicit UnpauseTest(const vamdgpu::MachineOptions& options = small_machine())
      : machine_(vamdgpu::Machine::create(options)),
        control_(vamdgpu::Control::open(machine_.directory().string())) {
    (void)::signal(SIGPIPE, SIG_IGN);  // a program that dies must show as a failed check
  }

  // Starts the subject.
  void start(const Strings& more = {}) {
    Strings options = {"--vram", "1M", "--gtt", "1M"};
    options.insert(options.end(), more.begin(), more.end());
    subject_ = start_subject(machine_, options);
    expect_running();
  }

  // A tracer that has called PROCESS_INFO so often and has not been killed yet.
  Program start_pausing(int times = 1) {
    Program actor({GPU_ACTOR, "pause", std::to_string(subject_.pid()), std::to_string(times)},
                  machine_.process_environment());
    EXPECT_EQ(actor.hear(), "paused");
    return actor;
  }

  void leave_paused(int times = 1) {
    start_pausing(times).kill();
    ASSERT_TRUE(state().queues_paused);
    ASSERT_FALSE(state().queues_run());
  }

  Ended sluice(const Strings& arguments, const std::function<void()>& before = {}) {
    // Where leaks are looked for at a program's end, ptrace is needed, which `before` may have forbidden.
    return cli_test::sluice(arguments, &machine_, before ? Strings{"ASAN_OPTIONS=detect_leaks=0"} : Strings{},
                            before);
  }

  Ended unpause(const std::function<void()>& before = {}) {
    return sluice({"unpause", std::to_string(subject_.pid())}, before);
  }

  // With --json: the object, after checking that it stands alone.
  json unpause_json(pid_t pid, int status, const std::function<void()>& before = {}) {
    const Ended ended = sluice({"unpause", "--json", std::to_string(pid)}, before);
    EXPECT_EQ(ended.status, status) << ended.out << ended.err;
    return object_of(ended);
  }
  json unpause_json(int status, const std::function<void()>& before = {}) {
    return unpause_json(subject_.pid(), status, before);
  }

  vamdgpu::ProcessInfo state() const { return control_->process(subject_.pid()).value(); }
  std::uint64_t unpause_calls() const { return control_->criu_calls(kUnpauseOp); }

  void expect_running() {
    EXPECT_FALSE(state().queues_paused);
    EXPECT_TRUE(state().queues_run());
    for (const auto& device : state().devices) EXPECT_EQ(device.evictions, 0U);
    const std::string check = subject_.ask("check");
    EXPECT_TRUE(check.starts_with("ok check")) << check;
    EXPECT_EQ(subject_.ask("work"), "ok work");
  }

  void expect_still_paused() {
    EXPECT_TRUE(state().queues_paused);
    EXPECT_FALSE(state().queues_run());
    EXPECT_EQ(state().unpauses, 0U);
  }

  vamdgpu::Machine machine_;
  std::unique_ptr<vamdgpu::Control> control_;
  Program subject_;
};

TEST_F(UnpauseTest, QueuesThatAKilledDumpLeftPausedRunAgain) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(leave_paused());
  const Ended ended = unpause();
  EXPECT_EQ(ended.status, kDone);
  EXPECT_EQ(ended.out,
            "process " + std::to_string(subject_.pid()) + " (gpu-subject): its GPU queues run again\n");
  EXPECT_EQ(ended.err, "");
  EXPECT_EQ(state().unpauses, 1U);
  expect_running();
}

TEST_F(UnpauseTest, JsonSaysTheSame) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(leave_paused());
  const json object = unpause_json(kDone);
  EXPECT_EQ(object.at("command"), "unpause");
  EXPECT_EQ(object.at("pid"), subject_.pid());
  EXPECT_EQ(object.at("name"), "gpu-subject");
  EXPECT_EQ(object.at("result"), "unpaused");
  EXPECT_EQ(object.at("reason"), "");
  EXPECT_TRUE(object.at("error").is_null());
  EXPECT_EQ(object.at("message"), "");
  EXPECT_EQ(object.at("remedy"), "");
  EXPECT_EQ(object.at("kfd_descriptors").size(), 1U);
  EXPECT_GE(object.at("threads").get<int>(), 1);
  EXPECT_EQ(object.at("stopped_threads"), 0);
  EXPECT_EQ(object.at("criu_code"), "none");
  EXPECT_TRUE(object.at("frozen_cgroup").is_null());
  EXPECT_TRUE(object.at("notes").empty());
  expect_running();
}

TEST_F(UnpauseTest, WhereNothingIsPausedThereIsNothingToDo) {
  ASSERT_NO_FATAL_FAILURE(start());
  EXPECT_EQ(unpause_json(kDone).at("result"), "not-paused");
  const Ended ended = unpause();
  EXPECT_EQ(ended.status, kDone);
  EXPECT_NE(ended.out.find("nothing to do"), std::string::npos) << ended.out;
  EXPECT_EQ(state().unpauses, 0U);
  expect_running();
}

TEST_F(UnpauseTest, OneUnpauseIsAllThatAProcessGetsWhateverItsDescriptors) {
  ASSERT_NO_FATAL_FAILURE(start({"--second-kfd", "--dup-kfd"}));
  ASSERT_NO_FATAL_FAILURE(leave_paused());
  EXPECT_EQ(unpause_json(kDone).at("kfd_descriptors").size(), 3U);
  EXPECT_EQ(state().unpauses, 1U);
  expect_running();
}

// Evictions are counted, and only the one that the flag stands for is given back: the rest might be memory
// pressure's.
TEST_F(UnpauseTest, AnEvictionThatIsNotFlaggedIsLeftAlone) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(leave_paused(2));
  EXPECT_EQ(unpause_json(kDone).at("result"), "unpaused");
  EXPECT_EQ(state().devices.front().evictions, 1U);
  const json object = unpause_json(kDone);
  EXPECT_EQ(object.at("result"), "not-paused");
  ASSERT_EQ(object.at("notes").size(), 1U);
  EXPECT_NE(object.at("notes").front().get<std::string>().find("7.3"), std::string::npos);
  EXPECT_EQ(state().devices.front().evictions, 1U);
  EXPECT_EQ(state().unpauses, 1U);
}

class UnpauseOnNewKernelTest : public UnpauseTest {
 protected:
  UnpauseOnNewKernelTest() : UnpauseTest(that_evicts_once()) {}
};

TEST_F(UnpauseOnNewKernelTest, HoweverOftenItWasPausedOneUnpauseIsEnough) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(leave_paused(3));
  EXPECT_EQ(unpause_json(kDone).at("result"), "unpaused");
  expect_running();
}

TEST_F(UnpauseTest, APluginsDumpThatIsKilledInsideItsHooks) {
  for (const char* step : {"dump_ext_file", "cpu_pages"}) {
    SCOPED_TRACE(step);
    ASSERT_NO_FATAL_FAILURE(start());
    const lookalike::ScratchDirectory images;
    Program dump(
        {CRIU_HOST, "dump", "--pid", std::to_string(subject_.pid()), "--images", images.path().string(),
         "--libdir", std::filesystem::path(SLUICE_PLUGIN).parent_path(), "--log", images.path() / "log",
         "--hold", step, "--control-fd", std::to_string(Program::kControlFd)},
        machine_.process_environment(), true);
    ASSERT_EQ(dump.hear_control(), step) << lookalike::read_file(images.path() / "log");
    EXPECT_EQ(unpause_json(kRefused).at("reason"), "traced");
    expect_still_paused();
    dump.kill();
    expect_still_paused();
    EXPECT_EQ(unpause_json(kDone).at("result"), "unpaused");
    expect_running();
    EXPECT_EQ(subject_.ask("quit"), "ok quit");
  }
}

TEST_F(UnpauseTest, AStoppedProcessStaysStoppedAndTheUserIsTold) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(leave_paused());
  ASSERT_EQ(::kill(subject_.pid(), SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(subject_.pid(), &status, WUNTRACED), subject_.pid());
  ASSERT_TRUE(WIFSTOPPED(status));

  const json object = unpause_json(kDone);
  EXPECT_EQ(object.at("result"), "unpaused");
  EXPECT_EQ(object.at("stopped_threads"), object.at("threads"));
  ASSERT_EQ(object.at("notes").size(), 1U);
  EXPECT_NE(object.at("notes").front().get<std::string>().find("kill -CONT"), std::string::npos);
  EXPECT_TRUE(state().queues_run());
  // The kernel puts it back into its stop when the tracer is gone, in its own time.
  const std::string directory = "/proc/" + std::to_string(subject_.pid());
  while (proc::read_task_status(directory)->state != 'T') (void)::sched_yield();
  ASSERT_EQ(::kill(subject_.pid(), SIGCONT), 0);
  expect_running();
}

// What the kernel would show of it, in a file of ours.
class UnpauseNotesTest : public UnpauseTest {
 protected:
  std::string file(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = files_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path.string();
  }
  std::string proc(const std::string& name) const {
    return "/proc/" + std::to_string(subject_.pid()) + "/" + name;
  }
  // The one note of `unpause` and of `unpause --json`, each told after a dump that was killed.
  void expect_note(const std::function<void()>& before, const std::string& note, json& object) {
    ASSERT_NO_FATAL_FAILURE(leave_paused());
    object = unpause_json(kDone, before);
    ASSERT_EQ(object.at("notes").size(), 1U) << object;
    EXPECT_NE(object.at("notes").front().get<std::string>().find(note), std::string::npos) << object;
    ASSERT_NO_FATAL_FAILURE(leave_paused());
    const Ended ended = unpause(before);
    EXPECT_EQ(ended.status, kDone);
    EXPECT_NE(ended.out.find("its GPU queues run again\nnote: "), std::string::npos) << ended.out;
    EXPECT_NE(ended.out.find(note), std::string::npos) << ended.out;
  }

  lookalike::ScratchDirectory files_;
};

TEST_F(UnpauseNotesTest, AFrozenCgroupIsNamedWithTheWayToThawIt) {
  if (!may_mount()) GTEST_SKIP() << "no cgroup can be made up here";
  ASSERT_NO_FATAL_FAILURE(start());
  (void)file("cgroup/cgroup.freeze", "1\n");
  (void)file("cgroup/freezer/freezer.self_freezing", "1\n");  // where version 1 has it
  const auto freeze = [&] { mount_over((files_.path() / "cgroup").string(), "/sys/fs/cgroup"); };
  json object;
  ASSERT_NO_FATAL_FAILURE(
      expect_note(freeze, "its cgroup is frozen, so its threads are paused; to let them run: echo ", object));
  const std::string frozen = object.at("frozen_cgroup").at("file");
  EXPECT_TRUE(frozen.starts_with("/sys/fs/cgroup/")) << frozen;
  EXPECT_NE(object.at("notes").front().get<std::string>().find(
                "echo " + object.at("frozen_cgroup").at("thaw").get<std::string>() + " > '" + frozen + "'"),
            std::string::npos);
}

// Who runs in a cgroup of his own names those below it.
TEST_F(UnpauseNotesTest, TheNameOfACgroupIsOneWordForTheShell) {
  if (!may_mount()) GTEST_SKIP() << "no cgroup can be made up here";
  ASSERT_NO_FATAL_FAILURE(start());
  (void)file("cgroup/x';id>pwned;'/cgroup.freeze", "1\n");
  const std::string own = file("own", "0::/x';id>pwned;'\n");
  json object;
  ASSERT_NO_FATAL_FAILURE(expect_note(
      [&] {
        mount_over((files_.path() / "cgroup").string(), "/sys/fs/cgroup");
        mount_over(own, proc("cgroup"));
      },
      R"(echo 0 > '/sys/fs/cgroup/x'\'';id>pwned;'\''/cgroup.freeze')", object));
}

TEST_F(UnpauseNotesTest, WhetherCriusCodeIsExecutedIsTold) {
  if (!may_mount()) GTEST_SKIP() << "no map can be made up here";
  ASSERT_NO_FATAL_FAILURE(start());
  const std::string maps =
      file("maps", "7f0000000000-7f0000010000 rwxs 00000000 00:01 77 /memfd:CRIUMFD (deleted)\n");
  const std::string inside = file("syscall", "45 0x3 0x7f000000e000 0x7f0000000123\n");
  const auto left = [&] { mount_over(maps, proc("maps")); };
  json object;
  ASSERT_NO_FATAL_FAILURE(
      expect_note(left, "criu's code is left in its memory (memfd:CRIUMFD) and not executed", object));
  EXPECT_EQ(object.at("criu_code"), "mapped");
  const auto executed = [&] {
    left();
    mount_over(inside, proc("syscall"));
  };
  ASSERT_NO_FATAL_FAILURE(expect_note(executed, "its lead thread is in criu's own code", object));
  EXPECT_EQ(object.at("criu_code"), "running");
}

// ---- who is refused

TEST_F(UnpauseTest, AProcessThatADumpTracesIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  const Program dump = start_pausing();
  const Ended ended = unpause();
  EXPECT_EQ(ended.status, kRefused);
  EXPECT_EQ(ended.out, "");
  const std::string tracer = "traced by process " + std::to_string(dump.pid()) + " (gpu-actor)";
  EXPECT_NE(ended.err.find(tracer), std::string::npos) << ended.err;
  const json object = unpause_json(kRefused);
  EXPECT_EQ(object.at("result"), "refused");
  EXPECT_EQ(object.at("reason"), "traced");
  EXPECT_NE(object.at("remedy"), "");
  EXPECT_EQ(unpause_calls(), 0U);
  expect_still_paused();
}

TEST_F(UnpauseTest, AThreadIsRefusedAndItsProcessNamed) {
  pid_t tid = 0;
  json object;
  std::thread([&] {
    tid = ::gettid();
    object = unpause_json(tid, kRefused);
  }).join();
  EXPECT_EQ(object.at("reason"), "not-lead-thread");
  EXPECT_NE(object.at("remedy").get<std::string>().find(std::to_string(::getpid())), std::string::npos);
}

TEST_F(UnpauseTest, AProcessThatHasEndedIsRefused) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(unpause_json(child, kRefused).at("reason"), "ended");
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(unpause_json(child, kRefused).at("reason"), "no-such-process");
}

TEST_F(UnpauseTest, NoProcessAtAllIsRefused) {
  EXPECT_EQ(unpause_json(INT_MAX, kRefused).at("reason"), "no-such-process");
}

TEST_F(UnpauseTest, AProcessWithoutGpuIsRefused) {
  EXPECT_EQ(unpause_json(::getpid(), kRefused).at("reason"), "not-gpu-process");
}

TEST_F(UnpauseTest, AProcessThatInheritedTheFileIsRefusedAndItsParentNamed) {
  Program parent({GPU_ACTOR, "inherit"}, machine_.process_environment());
  const std::string line = parent.hear();
  ASSERT_TRUE(line.starts_with("child ")) << line;
  const json object = unpause_json(std::stoi(line.substr(6)), kRefused);
  EXPECT_EQ(object.at("reason"), "inherited-files");
  EXPECT_NE(object.at("remedy").get<std::string>().find(std::to_string(parent.pid())), std::string::npos);
  parent.close_input();
  EXPECT_EQ(parent.wait(), 0);
}

TEST_F(UnpauseTest, AMachineWithoutKfdIsRefused) {
  if (std::filesystem::exists("/dev/kfd")) GTEST_SKIP() << "this machine has a KFD of its own";
  const Ended ended = run_command({SLUICE, "unpause", "--json", std::to_string(::getpid())}, {});
  EXPECT_EQ(ended.status, kRefused);
  EXPECT_EQ(json::parse(ended.out).at("reason"), "no-kfd");
}

// ---- what fails

TEST_F(UnpauseTest, AnUnpauseThatTheDriverRefusesFailsOnceAndCanBeTriedAgain) {
  ASSERT_NO_FATAL_FAILURE(start({"--second-kfd"}));
  ASSERT_NO_FATAL_FAILURE(leave_paused());
  control_->inject({.nr = kCriuNr, .op = kUnpauseOp, .error = EIO, .times = 1});
  const json object = unpause_json(kFailed);
  EXPECT_EQ(object.at("result"), "failed");
  EXPECT_EQ(object.at("reason"), "kernel-error");
  EXPECT_EQ(object.at("error"), "EIO");
  EXPECT_NE(object.at("remedy").get<std::string>().find("dmesg"), std::string::npos);
  expect_still_paused();  // the second file of the same process was not tried
  control_->clear_faults();
  EXPECT_EQ(unpause().status, kDone);
  expect_running();
}

TEST_F(UnpauseTest, AKernelThatCannotCheckpointSaysWhichOneCan) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(leave_paused());
  control_->inject({.nr = kCriuNr, .op = kUnpauseOp, .error = ENOTTY});
  const json object = unpause_json(kFailed);
  EXPECT_EQ(object.at("error"), "ENOTTY");
  EXPECT_NE(object.at("remedy").get<std::string>().find("Linux 6.1"), std::string::npos);
}

// As the kernel's own ENOTSUPP, which reaches users now and then.
TEST_F(UnpauseTest, AnErrorWithoutANameIsANumber) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(leave_paused());
  control_->inject({.nr = kCriuNr, .op = kUnpauseOp, .error = 524});
  EXPECT_EQ(unpause_json(kFailed).at("error"), "524");
}

TEST_F(UnpauseTest, AFileThatTheKernelHoldsForAnothersIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(leave_paused());
  control_->inject({.nr = kCriuNr, .op = kUnpauseOp, .error = EBADF});
  EXPECT_EQ(unpause_json(kRefused).at("reason"), "inherited-files");
  expect_still_paused();
}

TEST_F(UnpauseTest, SystemCallsThatAreForbidden) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(leave_paused());
  for (const int number : {SYS_ptrace, SYS_pidfd_open, SYS_pidfd_getfd}) {
    SCOPED_TRACE(number);
    const json object = unpause_json(kFailed, [number] { refuse_system_call(number, EPERM); });
    EXPECT_EQ(object.at("result"), "failed");
    EXPECT_EQ(object.at("reason"), "not-permitted");
    EXPECT_EQ(object.at("error"), "EPERM");
    EXPECT_NE(object.at("remedy").get<std::string>().find("CAP_SYS_PTRACE"), std::string::npos);
    expect_still_paused();
  }
  const Ended ended = unpause([] { refuse_system_call(SYS_pidfd_getfd, EPERM); });
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_EQ(ended.out, "");
  EXPECT_NE(ended.err.find("Operation not permitted"), std::string::npos) << ended.err;
  EXPECT_EQ(unpause().status, kDone);
  expect_running();
}

TEST_F(UnpauseTest, AKernelWithoutPidfdGetfd) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(leave_paused());
  const json object = unpause_json(kFailed, [] { refuse_system_call(SYS_pidfd_getfd, ENOSYS); });
  EXPECT_EQ(object.at("reason"), "kernel-error");
  EXPECT_EQ(object.at("error"), "ENOSYS");
  expect_still_paused();
}

TEST_F(UnpauseTest, WithoutTheCapabilityOfCheckpoints) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give up a capability and stay root";
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(leave_paused());
  const json object = unpause_json(kFailed, [] {
    give_up_capabilities({CAP_SYS_ADMIN, CAP_CHECKPOINT_RESTORE});
  });
  EXPECT_EQ(object.at("reason"), "not-permitted");
  EXPECT_EQ(object.at("error"), "EACCES");
  EXPECT_NE(object.at("remedy").get<std::string>().find("CAP_CHECKPOINT_RESTORE"), std::string::npos);
  expect_still_paused();
}

// ---- the command line

TEST_F(UnpauseTest, WrongUsage) {
  for (const Strings& arguments :
       {Strings{}, Strings{"unpause"}, Strings{"unpause", "0"}, Strings{"unpause", "-5"},
        Strings{"unpause", "4711x"}, Strings{"unpause", "99999999999"}, Strings{"unpause", "1", "2"},
        Strings{"unpause", "--force", "1"}, Strings{"pause", "1"}}) {
    const Ended ended = sluice(arguments);
    EXPECT_EQ(ended.status, kUsage) << ::testing::PrintToString(arguments);
    EXPECT_EQ(ended.out, "");
    EXPECT_NE(ended.err, "");
  }
}

}  // namespace
}  // namespace sluice::cli_test
