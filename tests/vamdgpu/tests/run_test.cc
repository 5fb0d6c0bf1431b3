// SPDX-License-Identifier: MIT
// vamdgpu-run and Machine: exit status, cleaning up, signals. The launcher is $VAMDGPU_RUN or lies beside
// this test. Each command tells the test by a pipe when it is running; nothing waits for time to pass.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "machine_directory.h"

namespace vamdgpu::tests {
namespace {

namespace fs = std::filesystem;

// This program with this argument says by its exit status whether there is a /dev/kfd: 0 or 1.
constexpr const char* kAskForKfd = "--is-there-a-kfd";

// This program with this argument prints the machine's directory and waits for the end of its input, with no
// handler for any signal. (A shell has one for SIGINT and can lose it between two commands.)
constexpr const char* kWaitForInput = "--wait-for-input";

int wait_for_input() {
  std::puts(::getenv("VAMDGPU_DIR"));
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}

// The launcher with a pipe from its standard output and one to its standard input.
class Launcher {
 public:
  explicit Launcher(std::vector<std::string> arguments) {
    const char* program = ::getenv("VAMDGPU_RUN");
    const fs::path beside = fs::read_symlink("/proc/self/exe").replace_filename("vamdgpu-run");
    arguments.insert(arguments.begin(), program != nullptr ? program : beside.string());
    std::vector<char*> pointers;
    pointers.reserve(arguments.size() + 1);
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    int output[2];
    int input[2];
    if (::pipe2(output, O_CLOEXEC) != 0 || ::pipe2(input, O_CLOEXEC) != 0) ::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(input[0], STDIN_FILENO);
      ::dup2(output[1], STDOUT_FILENO);
      ::signal(SIGINT, SIG_DFL);  // a background job of a shell has it ignored
      ::execv(pointers[0], pointers.data());
      ::_exit(99);
    }
    ::close(input[0]);
    ::close(output[1]);
    input_ = input[1];
    output_ = output[0];
  }
  ~Launcher() {
    close_input();
    if (pid_ > 0) wait();
    ::close(output_);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  pid_t pid() const { return pid_; }

  // One line of output, without its end; "" at the end of output.
  std::string line() {
    std::string text;
    char letter = 0;
    while (::read(output_, &letter, 1) == 1 && letter != '\n') text += letter;
    return text;
  }

  // All output from here to its end.
  std::string rest() {
    std::string text;
    char letter = 0;
    while (::read(output_, &letter, 1) == 1) text += letter;
    return text;
  }

  void close_input() {
    if (input_ >= 0) ::close(input_);
    input_ = -1;
  }

  // Leaves the command's input open: a command that waits for its end must be told otherwise.
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return shell_status(status);
  }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
};

std::vector<std::string> shell(const std::string& script, std::vector<std::string> options = {}) {
  options.insert(options.end(), {"--vram", "1M", "--gtt", "1M", "--", "/bin/sh", "-c", script});
  return options;
}

// In memory where there is such a place: a machine is hundreds of small files.
std::string new_directory() {
  const fs::path parent = fs::is_directory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
  std::string name = parent / "vamdgpu-test-XXXXXX";
  EXPECT_NE(::mkdtemp(name.data()), nullptr);
  return name;
}

TEST(Run, PassesTheExitStatusOn) {
  EXPECT_EQ(Launcher(shell("exit 0")).wait(), 0);
  EXPECT_EQ(Launcher(shell("exit 7")).wait(), 7);
  EXPECT_EQ(Launcher(shell("kill -USR1 $$")).wait(), 128 + SIGUSR1);
}

TEST(Run, SaysWhyACommandCannotBeRun) {
  EXPECT_EQ(Launcher({"--vram", "1M", "--gtt", "1M", "--", "/no/such/program"}).wait(), 127);
  EXPECT_EQ(Launcher({"--vram", "1M", "--gtt", "1M", "--", "/dev/null"}).wait(), 126);
}

TEST(Run, RefusesWrongOptions) {
  EXPECT_EQ(Launcher({}).wait(), 2);
  EXPECT_EQ(Launcher({"--nonsense"}).wait(), 2);
  EXPECT_EQ(Launcher({"--gpus", "none", "--", "true"}).wait(), 2);
  EXPECT_EQ(Launcher({"--gpus", "17", "--", "true"}).wait(), 2);
  EXPECT_EQ(Launcher({"--preset", "mi999", "--", "true"}).wait(), 2);
  EXPECT_EQ(Launcher({"--vram", "1X", "--", "true"}).wait(), 2);
  EXPECT_EQ(Launcher({"--vram", "99999999999G", "--", "true"}).wait(), 2);
  EXPECT_EQ(Launcher({"--links", "string", "--", "true"}).wait(), 2);
}

TEST(Run, HelpNamesTheOptions) {
  Launcher launcher({"--help"});
  EXPECT_EQ(launcher.line(), "usage: vamdgpu-run [OPTION...] -- COMMAND [ARGUMENT...]");
  const std::string rest = launcher.rest();
  EXPECT_EQ(launcher.wait(), 0);
  for (const char* option : {"--gpus", "--preset", "--vram", "--gtt", "--cpu-nodes", "--links",
                             "--minor-base", "--minors", "--linux", "--keep", "--dir"})
    EXPECT_NE(rest.find(option), std::string::npos) << option;
}

TEST(Run, MachineIsThereDuringTheCommandAndGoneAfter) {
  Launcher launcher(shell("echo $VAMDGPU_DIR; read answer", {"--gpus", "1"}));
  const std::string directory = launcher.line();
  ASSERT_FALSE(directory.empty());
  EXPECT_TRUE(Machine::exists(directory));
  launcher.close_input();
  launcher.wait();
  EXPECT_FALSE(fs::exists(directory));
}

TEST(Run, CommandSeesTheOptions) {
  Launcher launcher(
      shell("cat /sys/class/kfd/kfd/topology/nodes/2/name;"
            "ls /sys/class/kfd/kfd/topology/nodes | wc -l; ls -d /dev/dri/renderD1*;"
            "grep size_in_bytes /sys/class/kfd/kfd/topology/nodes/2/mem_banks/0/properties",
            {"--gpus", "2", "--preset", "mi300x", "--cpu-nodes", "2", "--minor-base", "150"}));
  EXPECT_EQ(launcher.line(), "ip discovery");
  EXPECT_EQ(launcher.line(), "4");
  EXPECT_EQ(launcher.line(), "/dev/dri/renderD150");
  EXPECT_EQ(launcher.line(), "/dev/dri/renderD151");
  EXPECT_EQ(launcher.line(), "size_in_bytes 1048576");
  EXPECT_EQ(launcher.wait(), 0);
}

TEST(Run, SignalEndsTheCommandAndRemovesTheMachine) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Launcher launcher(
        {"--vram", "1M", "--gtt", "1M", "--", fs::read_symlink("/proc/self/exe"), kWaitForInput});
    const std::string directory = launcher.line();
    ASSERT_TRUE(Machine::exists(directory));
    ::kill(launcher.pid(), signal);
    EXPECT_EQ(launcher.wait(), 128 + signal);
    EXPECT_FALSE(fs::exists(directory));
  }
}

TEST(Run, KeptMachineIsUsedAgain) {
  const std::string name = new_directory();
  EXPECT_EQ(Launcher(shell("true", {"--gpus", "3", "--keep", "--dir", name})).wait(), 0);
  ASSERT_TRUE(Machine::exists(name));
  Launcher again(shell("ls /dev/dri | wc -l", {"--dir", name}));
  EXPECT_EQ(again.line(), "6");
  EXPECT_EQ(again.wait(), 0);
  EXPECT_TRUE(Machine::exists(name));
  fs::remove_all(name);
}

TEST(Run, DirectoryWithOtherThingsIsRefused) {
  const std::string name = new_directory();
  fs::create_directory(fs::path(name) / "something");
  EXPECT_EQ(Launcher(shell("true", {"--dir", name})).wait(), 125);
  EXPECT_TRUE(fs::exists(fs::path(name) / "something"));
  fs::remove_all(name);
}

TEST(Machine, DestructorRemovesAndKeepLeaves) {
  MachineOptions options;
  options.vram_bytes = 1 << 20;
  options.gtt_bytes = 1 << 20;
  fs::path removed;
  fs::path kept;
  {
    Machine machine = Machine::create(options);
    removed = machine.directory();
    EXPECT_TRUE(fs::exists(machine.topology() / "nodes/1/gpu_id"));
    Machine moved = std::move(machine);
    EXPECT_TRUE(Machine::exists(removed));
    Machine other = Machine::create(options);
    other.keep();
    kept = other.directory();
  }
  EXPECT_FALSE(fs::exists(removed));
  EXPECT_TRUE(Machine::exists(kept));
  { const Machine attached = Machine::attach(kept); }
  EXPECT_TRUE(Machine::exists(kept));
  fs::remove_all(kept);
  EXPECT_THROW(Machine::attach(kept), std::system_error);
}

TEST(Machine, RunGivesTheCommandTheMachine) {
  MachineOptions options;
  options.vram_bytes = 1 << 20;
  options.gtt_bytes = 1 << 20;
  const Machine machine = Machine::create(options);
  EXPECT_EQ(machine.run(
                {"/bin/sh", "-c", "test -c /dev/kfd && test $VAMDGPU_DIR = " + machine.directory().string()}),
            0);
  EXPECT_EQ(machine.run({"/bin/sh", "-c", "exit 9"}), 9);
}

// With the library but without a machine everything is the host's.
TEST(Machine, LibraryAloneChangesNothing) {
  MachineOptions options;
  options.vram_bytes = 1 << 20;
  options.gtt_bytes = 1 << 20;
  const Machine machine = Machine::create(options);
  const std::string self = fs::read_symlink("/proc/self/exe");
  EXPECT_EQ(machine.run({self, kAskForKfd}), 0);
  EXPECT_EQ(machine.run({"/usr/bin/env", "-u", "VAMDGPU_DIR", self, kAskForKfd}),
            fs::exists("/dev/kfd") ? 0 : 1);
}

}  // namespace
}  // namespace vamdgpu::tests

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == vamdgpu::tests::kWaitForInput)
    return vamdgpu::tests::wait_for_input();
  if (argc == 2 && std::string(argv[1]) == vamdgpu::tests::kAskForKfd)
    return std::filesystem::exists("/dev/kfd") ? 0 : 1;
  // The commands here are the system's, which LeakSanitizer would judge too when this build is sanitized.
  ::setenv("ASAN_OPTIONS", "detect_leaks=0", 0);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
