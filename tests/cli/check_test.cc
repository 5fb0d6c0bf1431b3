// SPDX-License-Identifier: MIT
// `sluice check` on a virtual machine and on one without a GPU: verdicts with remedies, and nothing opened
// for writing.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <fstream>

#include "cli/check.h"
#include "made_images.h"

namespace sluice::cli_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// From now on the process, and what it starts, is killed if it opens a file for writing, or changes a name.
void die_at_writing() {
  const auto refuse_call = [](int number) -> sock_filter {
    return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1);
  };
  const sock_filter kill = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  std::vector<sock_filter> filter = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const int number : {SYS_ftruncate, SYS_renameat2, SYS_unlinkat, SYS_mkdirat, SYS_fchmod, SYS_fallocate,
                           SYS_openat2, SYS_ptrace}) {
    filter.push_back(refuse_call(number));
    filter.push_back(kill);
  }
#ifdef SYS_open  // not everywhere
  for (const int number : {SYS_creat, SYS_rename, SYS_unlink, SYS_mkdir, SYS_truncate}) {
    filter.push_back(refuse_call(number));
    filter.push_back(kill);
  }
#endif
  // openat(fd, path, flags, mode): the lower half of the third argument.
  const unsigned writing = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3));
  filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])));
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, writing, 0, 1));
  filter.push_back(kill);
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    ::_exit(126);
}

class CheckTest : public ::testing::Test {
 protected:
  CheckTest() { make_criu("echo 'Version: 4.1.1'"); }

  // What stands for criu in the PATH.
  void make_criu(const std::string& does) const {
    const std::string path = tools_.path() / "criu";
    std::ofstream(path) << "#!/bin/sh\n" << does << '\n';
    ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  }
  Strings environment() const {
    return {"PATH=" + tools_.path().string() + ":/usr/bin:/bin",
            "CRIU_LIBS_DIR=" + std::filesystem::path(SLUICE_PLUGIN).parent_path().string()};
  }
  Ended check(const Strings& arguments, const vamdgpu::Machine* machine) const {
    Strings command = {"check"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return sluice(command, machine, environment());
  }
  static json finding(const json& object, const std::string& subject) {
    for (const json& one : object["findings"]) {
      if (one["subject"] == subject) return one;
    }
    return json::object();
  }

  host_test::ScratchDirectory tools_;
};

TEST_F(CheckTest, WithoutAGpuItSaysSoAndWhatToDo) {
  if (::access("/dev/kfd", F_OK) == 0) GTEST_SKIP() << "this machine has a GPU";
  const Ended ended = check({}, nullptr);
  EXPECT_EQ(ended.status, kRefused);
  EXPECT_THAT(ended.out, HasSubstr("X kfd: this machine has no AMD GPU that can compute"));
  EXPECT_THAT(ended.out, HasSubstr("modprobe amdgpu"));
  EXPECT_THAT(ended.out, HasSubstr("A dump will NOT work"));
}

TEST_F(CheckTest, AProcessOnAMachineWithGpus) {
  const vamdgpu::Machine machine = vamdgpu::Machine::create(small_machine());
  host_test::Program subject({GPU_SUBJECT, "--vram", "4M", "--gtt", "1M"}, machine.process_environment());
  ASSERT_TRUE(subject.hear().starts_with("ready"));
  const json object = object_of(
      check({"--json", "--pid", std::to_string(subject.pid()), "--dir", tools_.path().string()}, &machine));
  for (const char* subject_word : {"criu", "plugin", "kfd", "gpu", "drm", "process", "directory", "direct-io",
                                   "space", "io_uring", "memlock", "memory", "checksum", "permission"})
    EXPECT_FALSE(finding(object, subject_word).empty()) << subject_word;
  EXPECT_EQ(finding(object, "criu")["weight"], "good");
  EXPECT_EQ(finding(object, "kfd")["weight"], "good");
  EXPECT_EQ(finding(object, "gpu")["weight"], "good");
  EXPECT_THAT(finding(object, "process")["text"].get<std::string>(), HasSubstr("1 with GPUs"));
  for (const json& one : object["findings"]) {
    EXPECT_EQ(one["weight"] == "good", one["remedy"] == "") << one;
  }
  EXPECT_EQ(subject.ask("check").substr(0, 8), "ok check");  // nothing has changed for it
}

// It may not open a file for writing, change a name or trace: it would be killed for it.
TEST_F(CheckTest, OpensNothingForWriting) {
#ifdef COVERAGE
  GTEST_SKIP() << "a program that is counted opens the file of its counters";
#endif
  Strings command = {"check", "--pid", std::to_string(::getpid()), "--dir", tools_.path().string()};
  make_criu("exit 1");  // our shell opens nothing for writing either
  Strings variables = environment();
  variables.emplace_back("ASAN_OPTIONS=detect_leaks=0");  // the leak checker traces
  const Ended ended = sluice(command, nullptr, variables, die_at_writing);
  EXPECT_TRUE(ended.status == kDone || ended.status == kRefused) << ended.status << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("direct-io"));
}

TEST_F(CheckTest, ReadsTheVersionOfCriu) {
  make_criu("echo 'Version: 3.16'");
  json criu = finding(object_of(check({"--json"}, nullptr)), "criu");
  EXPECT_EQ(criu["weight"], "problem");
  EXPECT_THAT(criu["remedy"].get<std::string>(), HasSubstr("3.17"));
  make_criu("exec /bin/sleep 60");  // is not waited for
  criu = finding(object_of(check({"--json"}, nullptr)), "criu");
  EXPECT_EQ(criu["weight"], "warning");
  std::filesystem::remove(tools_.path() / "criu");
  if (::access("/usr/sbin/criu", F_OK) == 0 || ::access("/usr/bin/criu", F_OK) == 0) return;
  criu = finding(object_of(check({"--json"}, nullptr)), "criu");
  EXPECT_EQ(criu["weight"], "problem");
}

TEST_F(CheckTest, APluginOfAnotherIsNotTakenForOurs) {
  const host_test::ScratchDirectory other;
  std::ofstream(other.path() / "amdgpu_plugin.so") << "not even ELF";
  const Strings variables = {"CRIU_LIBS_DIR=" + other.path().string()};
  json plugin = finding(object_of(sluice({"check", "--json"}, nullptr, variables)), "plugin");
  EXPECT_EQ(plugin["weight"], "warning");
  std::ofstream(other.path() / "amdgpu_plugin.so") << "sluice amdgpu_plugin 9.9, cut short";
  plugin = finding(object_of(sluice({"check", "--json"}, nullptr, variables)), "plugin");
  EXPECT_EQ(plugin["weight"], "problem");
  EXPECT_THAT(plugin["text"].get<std::string>(), HasSubstr("cannot be loaded"));
  std::filesystem::remove(other.path() / "amdgpu_plugin.so");
  plugin = finding(object_of(sluice({"check", "--json"}, nullptr, variables)), "plugin");
  EXPECT_EQ(plugin["weight"], "problem");
}

TEST_F(CheckTest, WrongProcessesAndDirectoriesAreProblems) {
  const json object =
      object_of(check({"--json", "--pid", "2147483647", "--dir", "/does/not/exist"}, nullptr));
  EXPECT_EQ(finding(object, "process")["weight"], "problem");
  EXPECT_EQ(finding(object, "directory")["weight"], "problem");
  EXPECT_EQ(check({"--pid", "0"}, nullptr).status, kUsage);
  EXPECT_EQ(check({"--pid", "none"}, nullptr).status, kUsage);
}

// What the KFD says of a process' VRAM counts against the room in the directory.
TEST(CheckProcesses, AddsUpVramAndComparesItWithTheSpace) {
  const host_test::ScratchDirectory sysfs;
  const std::filesystem::path own = sysfs.path() / std::to_string(::getpid());
  std::filesystem::create_directory(own);
  std::ofstream(own / "vram_11") << "4096\n";
  std::ofstream(own / "vram_12") << (std::uint64_t{1} << 60) << '\n';
  kfd::Topology topology;
  for (const std::uint32_t gpu_id : {11U, 12U}) {
    kfd::Node node;
    node.gpu_id = gpu_id;
    node.drm_render_minor = 128 + gpu_id;
    topology.nodes.push_back(node);
  }
  const cli::ProcessCheck processes = cli::check_processes(::getpid(), topology, sysfs.path().string());
  ASSERT_TRUE(processes.bytes.has_value());
  EXPECT_EQ(*processes.bytes, 4096 + (std::uint64_t{1} << 60));
  const cli::Findings directory = cli::check_directory(sysfs.path().string(), processes.bytes);
  EXPECT_EQ(directory.back().subject, "space");
  EXPECT_EQ(directory.back().weight, cli::Weight::Problem);
}

}  // namespace
}  // namespace sluice::cli_test
