// SPDX-License-Identifier: MIT
// `sluice check` on a virtual machine and on one without a GPU: verdicts with remedies, and nothing opened
// for writing.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>
#include <thread>

#include "base/units.h"
#include "cli/check/check.h"
#include "cli/text.h"
#include "control.h"
#include "made_images.h"

namespace sluice::cli_test {
namespace {

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
  Ended check(const Strings& arguments, const vamdgpu::Machine* machine, const Strings& settings = {},
              const std::function<void()>& before = {}) const {
    Strings command = {"check"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Strings variables = environment();
    variables.insert(variables.end(), settings.begin(), settings.end());
    return sluice(command, machine, variables, before);
  }
  json check_json(Strings arguments, const vamdgpu::Machine* machine, const Strings& settings = {},
                  const std::function<void()>& before = {}) const {
    arguments.emplace_back("--json");
    return object_of(check(arguments, machine, settings, before));
  }
  static std::vector<json> findings(const json& object, const std::string& subject) {
    std::vector<json> found;
    for (const json& one : object["findings"]) {
      if (one["subject"] == subject) found.push_back(one);
    }
    return found;
  }
  // The first.
  static json finding(const json& object, const std::string& subject) {
    const std::vector<json> found = findings(object, subject);
    return found.empty() ? json::object() : found.front();
  }
  // "weight: text (remedy)" of it.
  static std::string told(const json& object, const std::string& subject) {
    return text_of(finding(object, subject));
  }
  static std::string text_of(const json& one) {
    return one.value("weight", "") + ": " + one.value("text", "") + " (" + one.value("remedy", "") + ")";
  }

  lookalike::ScratchDirectory tools_;
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
  lookalike::Program subject = start_subject(machine, {"--vram", "4M", "--gtt", "1M"});
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
#elif defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer's runtime makes a file of its own when the program begins";
#endif
  Strings command = {"check", "--pid", std::to_string(::getpid()), "--dir", tools_.path().string()};
  make_criu("exit 1");  // our shell opens nothing for writing either
  Strings variables = environment();
  variables.emplace_back("ASAN_OPTIONS=detect_leaks=0");  // the leak checker traces
  const Ended ended = sluice(command, nullptr, variables, die_at_writing);
  EXPECT_TRUE(ended.status == kDone || ended.status == kRefused) << ended.status << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("direct-io"));
}

// Every line fits into a terminal of 100 columns, except a command, which can be copied.
TEST_F(CheckTest, NoLineIsLongerThanAHundredColumns) {
  const vamdgpu::Machine machine = vamdgpu::Machine::create(small_machine());
  lookalike::Program subject = start_subject(machine, {"--vram", "4M", "--gtt", "1M"});
  for (const Strings& arguments : {Strings{}, Strings{"--pid", std::to_string(subject.pid())}}) {
    std::istringstream out(check(arguments, &machine).out);
    for (std::string line; std::getline(out, line);) {
      if (!line.starts_with("  command:")) {
        EXPECT_LE(line.size(), 100U) << line;
      }
    }
  }
}

TEST_F(CheckTest, AReportHasWhatTheMachineIsAndWhatTheLogsSay) {
  const vamdgpu::Machine machine = vamdgpu::Machine::create(small_machine());
  const std::filesystem::path log = tools_.path() / "dump.log";
  std::ofstream(log)
      << "(00.1) amdgpu_plugin: dump GPU 0x0001\n(00.2) Error (criu/x.c:1): refused\n(00.3) pie: 7\n";
  const Ended ended =
      check({"--report", "--dir", tools_.path().string()}, &machine, {"SLUICE_STAGING_SIZE=8M"});
  EXPECT_EQ(ended.status, kDone) << ended.err;
  for (const char* part :
       {"\nsettings", "\n  SLUICE_STAGING_SIZE=8M\n", "\ntopology\n", "simd_count=", "link: ", "\ncheck\n",
        "  criu: ", "dump GPU 0x0001", "Error (criu/x.c:1): refused"})
    EXPECT_THAT(ended.out, HasSubstr(part));
  EXPECT_THAT(ended.out, AllOf(StartsWith("versions\n  sluice "), Not(HasSubstr("pie: 7")),
                               Not(HasSubstr("unique_id"))));
}

TEST_F(CheckTest, AReportOfAMachineWithoutAGpuIsMadeAsWell) {
  const Ended ended = check({"--report"}, nullptr);
  EXPECT_EQ(ended.status, kDone);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("topology\n"), HasSubstr("--dir DIR takes the *.log")));
  EXPECT_EQ(check({"--report", "--json"}, nullptr).status, kUsage);
}

TEST_F(CheckTest, ReadsTheVersionOfCriu) {
  for (const char* old : {"3.16", "2.12", "3.9.1"}) {
    make_criu("echo 'Version: " + std::string(old) + "'");
    EXPECT_THAT(told(check_json({}, nullptr), "criu"),
                AllOf(StartsWith("problem: "), HasSubstr("has no hooks"), HasSubstr("install 3.17")))
        << old;
  }
  make_criu("echo 'Version: 3.17.1'");
  EXPECT_THAT(
      told(check_json({}, nullptr), "criu"),
      AllOf(StartsWith("good: "), HasSubstr("3.17.1; 4.0 and newer dump GPU memory beside the rest")));
  make_criu("echo 'Version: 4.1.1'");
  EXPECT_THAT(told(check_json({}, nullptr), "criu"),
              AllOf(StartsWith("good: "), HasSubstr("version 4.1.1 ")));
}

TEST_F(CheckTest, ACriuThatDoesNotTellItsVersionIsNotWaitedFor) {
  for (const char* does : {"exec /bin/sleep 60", "exit 1", "echo Version; exec yes"}) {
    make_criu(does);
    EXPECT_THAT(told(check_json({}, nullptr), "criu"),
                AllOf(StartsWith("warning: "), HasSubstr("does not tell its version")))
        << does;
  }
  std::ofstream(tools_.path() / "criu") << "no program";  // and cannot be started
  EXPECT_THAT(told(check_json({}, nullptr), "criu"), StartsWith("warning: "));
}

TEST_F(CheckTest, WithoutCriuItSaysWhatToInstall) {
  if (!may_mount()) GTEST_SKIP() << "the machine's own criu cannot be hidden here";
  const lookalike::ScratchDirectory nothing;
  const auto hide = [&] {
    for (const char* directory : {"/usr/sbin", "/usr/local/sbin"})
      mount_over(nothing.path().string(), directory);
  };
  for (const Strings& variables : {Strings{}, Strings{"PATH=" + nothing.path().string() + "::/usr/sbin"}}) {
    EXPECT_THAT(told(object_of(sluice({"check", "--json"}, nullptr, variables, hide)), "criu"),
                AllOf(StartsWith("problem: no criu in the PATH"), HasSubstr("apt install criu")));
  }
}

TEST_F(CheckTest, APluginOfAnotherIsNotTakenForOurs) {
  const lookalike::ScratchDirectory other;
  const std::filesystem::path file = other.path() / "amdgpu_plugin.so";
  const auto plugin = [&] {
    return told(object_of(sluice({"check", "--json"}, nullptr, {"CRIU_LIBS_DIR=" + other.path().string()})),
                "plugin");
  };
  EXPECT_THAT(plugin(),
              AllOf(StartsWith("problem: "), HasSubstr("No such file"), HasSubstr("CRIU_LIBS_DIR")));
  std::filesystem::create_directory(file);
  EXPECT_THAT(plugin(), AllOf(StartsWith("warning: "), HasSubstr("is not sluice's")));
  std::filesystem::remove(file);
  for (const char* text : {"", "not even ELF"}) {
    std::ofstream(file) << text;
    EXPECT_THAT(plugin(), AllOf(StartsWith("warning: "), HasSubstr("is not sluice's"))) << text;
  }
  std::ofstream(file) << "sluice amdgpu_plugin 9.9, cut short";
  EXPECT_THAT(plugin(), AllOf(StartsWith("problem: "), HasSubstr("cannot be loaded")));
  std::filesystem::copy_file(NO_PLUGIN, file, std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(plugin(), AllOf(StartsWith("problem: "), HasSubstr("has no plugin descriptor")));
}

// A name that is no directory; a directory that may not be searched.
TEST_F(CheckTest, APluginThatCannotBeReachedIsMissing) {
  const auto plugin = [&](const std::string& directory) {
    return finding(object_of(sluice({"check", "--json"}, nullptr, {"CRIU_LIBS_DIR=" + directory},
                                    [] {
                                      if (::geteuid() == 0)
                                        give_up_capabilities({CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH});
                                    })),
                   "plugin");
  };
  EXPECT_EQ(plugin(tools_.path() / "criu")["code"], "plugin-missing");
  const std::filesystem::path closed = tools_.path() / "closed";
  std::filesystem::create_directory(closed);
  std::filesystem::permissions(closed, std::filesystem::perms::none);
  EXPECT_EQ(plugin(closed)["code"], "plugin-missing");
}

// Where criu looks when no variable says otherwise, and its file does not tell.
TEST_F(CheckTest, ThePluginIsLookedForWhereItIsInstalled) {
  EXPECT_THAT(told(object_of(sluice({"check", "--json"}, nullptr)), "plugin"),
              HasSubstr(SLUICE_PLUGIN_DIRECTORY "/amdgpu_plugin.so"));
}

// What a program of criu's contains apart from its code.
std::string criu_file(const std::string& plugins) {
  return std::string("\177ELF") + '\0' + "4.2" + '\0' + plugins + '\0';
}

// criu of Fedora, RHEL and SUSE has another directory for plugins.
TEST_F(CheckTest, ThePluginIsLookedForWhereTheFoundCriuLooks) {
  const lookalike::ScratchDirectory plugins;
  std::ofstream(tools_.path() / "criu") << criu_file(plugins.path().string() + "/lib64/criu/");
  const Strings path = {"PATH=" + tools_.path().string()};
  const auto look = [&](const std::function<void()>& before = {}) {
    return finding(object_of(sluice({"check", "--json"}, nullptr, path, before)), "plugin");
  };
  const std::filesystem::path there = plugins.path() / "lib64/criu";
  json plugin = look();
  EXPECT_EQ(plugin["code"], "plugin-missing");
  EXPECT_THAT(text_of(plugin), HasSubstr(there.string() + "/amdgpu_plugin.so: No such file"));
  std::filesystem::create_directories(there);
  std::filesystem::copy_file(SLUICE_PLUGIN, there / "amdgpu_plugin.so");
  plugin = look();
  EXPECT_EQ(plugin["weight"], "good");
  EXPECT_THAT(text_of(plugin), HasSubstr(there.string()));
  const json other = finding(object_of(sluice({"check", "--json"}, nullptr, environment())), "plugin");
  EXPECT_EQ(other["weight"], "good");
  EXPECT_THAT(text_of(other), Not(HasSubstr(there.string()))) << "CRIU_LIBS_DIR is above it";
}

// Whatever their names, criu loads all that end in .so.
TEST_F(CheckTest, OfSeveralAmdgpuPluginsTheOneThatCriuTakesIsNamed) {
  const lookalike::ScratchDirectory plugins;
  const std::filesystem::path ours = plugins.path() / "amdgpu_plugin.so";
  const auto plugin = [&] {
    const Strings place = {"CRIU_LIBS_DIR=" + plugins.path().string()};
    return finding(object_of(sluice({"check", "--json"}, nullptr, place)), "plugin");
  };
  // Directories list names in an order of their own.
  bool was_first = false, was_second = false;
  for (int i = 0; i < 64 && !(was_first && was_second); ++i) {
    const std::filesystem::path other = plugins.path() / ("other" + std::to_string(i) + ".so");
    if (i % 2 == 0) std::filesystem::copy_file(SLUICE_PLUGIN, ours);
    std::filesystem::copy_file(OTHER_AMDGPU, other);
    if (i % 2 != 0) std::filesystem::copy_file(SLUICE_PLUGIN, ours);
    const std::filesystem::path first = *std::filesystem::directory_iterator(plugins.path());
    const json found = plugin();
    EXPECT_EQ(found["code"], "plugin-twice");
    EXPECT_EQ(found["weight"], first == ours ? "warning" : "problem");
    EXPECT_THAT(text_of(found),
                AllOf(HasSubstr("2 amdgpu plugins"), HasSubstr(ours.string() + ", sluice "),
                      HasSubstr(other.string() + ", not sluice's"), HasSubstr("takes " + first.string())));
    (first == ours ? was_first : was_second) = true;
    std::filesystem::remove(other);
    std::filesystem::remove(ours);
  }
  EXPECT_TRUE(was_first || was_second);
}

// Some development sources of CRIU load one plugin of a name.
TEST_F(CheckTest, ACriuThatChoosesAmongPluginsTakesTheHighestVersion) {
  const lookalike::ScratchDirectory plugins;
  std::ofstream(tools_.path() / "criu")
      << criu_file(plugins.path().string() + "/lib/criu/") << "CR_PLUGIN_DESC_SIZE" << '\0';
  const std::filesystem::path there = plugins.path() / "lib/criu";
  std::filesystem::create_directories(there);
  std::filesystem::copy_file(SLUICE_PLUGIN, there / "amdgpu_plugin.so");
  const auto beside = [&](const char* other) {
    std::filesystem::copy_file(other, there / "other.so", std::filesystem::copy_options::overwrite_existing);
    const Strings path = {"PATH=" + tools_.path().string()};
    return finding(object_of(sluice({"check", "--json"}, nullptr, path)), "plugin");
  };
  for (const char* equal : {OTHER_AMDGPU, OTHER_AMDGPU_0}) {
    const json found = beside(equal);
    EXPECT_EQ(found["weight"], "problem");
    EXPECT_THAT(text_of(found), HasSubstr("This criu fails, because two have implementation version 1"));
  }
  const json found = beside(OTHER_AMDGPU_7);
  EXPECT_EQ(found["weight"], "problem");
  EXPECT_THAT(text_of(found), HasSubstr("takes " + (there / "other.so").string()));
}

TEST_F(CheckTest, OurPluginIsFoundUnderAnotherName) {
  const lookalike::ScratchDirectory plugins;
  std::filesystem::copy_file(SLUICE_PLUGIN, plugins.path() / "gpus.so");
  const Strings place = {"CRIU_LIBS_DIR=" + plugins.path().string()};
  const json found = finding(object_of(sluice({"check", "--json"}, nullptr, place)), "plugin");
  EXPECT_EQ(found["weight"], "good");
  EXPECT_THAT(text_of(found), HasSubstr("gpus.so, sluice "));
}

// Where it is installed for another criu, both places are named.
TEST_F(CheckTest, APluginInTheDirectoryOfAnotherCriuIsNamed) {
  const std::filesystem::path built_for = SLUICE_PLUGIN_DIRECTORY;
  const std::filesystem::path parent = built_for.parent_path();
  if (!may_mount() || !std::filesystem::is_directory(parent)) GTEST_SKIP() << "nothing can be mounted here";
  // The parent directory with the plugin in it; the command itself does not need what else is
  // there.
  const lookalike::ScratchDirectory made;
  std::filesystem::create_directory(made.path() / built_for.filename());
  std::filesystem::copy_file(SLUICE_PLUGIN, made.path() / built_for.filename() / "amdgpu_plugin.so");
  const std::string options = "lowerdir=" + made.path().string() + ":" + parent.string();
  const auto mount_it = [&] {
    mount_over("/proc", "/proc");
    if (::mount("overlay", parent.c_str(), "overlay", 0, options.c_str()) != 0) ::_exit(126);
  };
  std::ofstream(tools_.path() / "criu") << criu_file("/usr/lib64/none/criu");
  const Ended ended = sluice({"check", "--json"}, nullptr, {"PATH=" + tools_.path().string()}, mount_it);
  if (ended.status == 126) GTEST_SKIP() << "no overlay file system here";
  const json plugin = finding(object_of(ended), "plugin");
  EXPECT_EQ(plugin["code"], "plugin-directory") << plugin;
  EXPECT_EQ(plugin["weight"], "problem");
  EXPECT_THAT(text_of(plugin),
              AllOf(HasSubstr("criu looks in /usr/lib64/none/criu"), HasSubstr(SLUICE_PLUGIN_DIRECTORY),
                    HasSubstr("-Dplugindir=/usr/lib64/none/criu")));
}

// Nobody waits longer for a criu that is slow to start: its file tells.
TEST_F(CheckTest, TheVersionIsReadFromTheFileOfACriuThatDoesNotAnswer) {
  std::ofstream(tools_.path() / "criu") << criu_file("/usr/lib/criu/");  // no program that could be started
  EXPECT_THAT(told(check_json({}, nullptr), "criu"), AllOf(StartsWith("good: "), HasSubstr("version 4.2")));
}

// ---- the machine

TEST_F(CheckTest, ThatADumpWillWorkIsTheLastLine) {
  if (::geteuid() != 0) GTEST_SKIP() << "a dump will work for root only";
  vamdgpu::MachineOptions options = small_machine();
  options.kfd_minor_version = 17;  // a kernel that saves running kernels of the GPU
  options.list_handles = true;
  const vamdgpu::Machine machine = vamdgpu::Machine::create(options);
  const json object = check_json({}, &machine);
  EXPECT_EQ(object["result"], "works") << object;
  EXPECT_EQ(object["problems"], 0);
  const auto warnings = object["warnings"].get<std::size_t>();  // of io_uring, in a container
  const Ended good = check({}, &machine);
  EXPECT_EQ(good.status, kDone);
  EXPECT_THAT(good.out, AllOf(StartsWith("  criu: "), HasSubstr("\n  gpu: GPU 0x"),
                              HasSubstr("lists the BOs of render nodes"), Not(HasSubstr("X "))));
  if (warnings == 0) {
    EXPECT_THAT(good.out, EndsWith("\nA dump will work\n"));
  }
  const Ended warned = check({}, &machine, {"SLUICE_CHECKSUM=off"});
  EXPECT_EQ(warned.status, kDone);
  EXPECT_THAT(warned.out,
              AllOf(HasSubstr("\n! checksum: switched off"), HasSubstr("\n    leave SLUICE_CHECKSUM on\n"),
                    EndsWith("\nA dump will work, with " + cli::count_text(warnings + 1, "warning") + "\n")));
}

TEST_F(CheckTest, WhatKeepsADumpFromWorkingIsCounted) {
  make_criu("echo 'Version: 3.16'");
  const Strings setting = {"SLUICE_CHEKSUM=off"};
  const json object = check_json({}, nullptr, setting);
  EXPECT_EQ(object["result"], "refused");
  EXPECT_THAT(told(object, "settings"),
              AllOf(StartsWith("warning: "), HasSubstr("did you mean SLUICE_CHECKSUM?"),
                    HasSubstr("docs/user/configuration.md")));
  EXPECT_THAT(check({}, nullptr, setting).out,
              EndsWith("\nA dump will NOT work: " + cli::count_text(object["problems"], "problem") + ", " +
                       cli::count_text(object["warnings"], "warning") + "\n"));
}

TEST_F(CheckTest, AGpuThatADeviceCgroupHidesIsTold) {
  vamdgpu::MachineOptions options = small_machine();
  options.hidden = {1};
  const vamdgpu::Machine machine = vamdgpu::Machine::create(options);
  const std::vector<json> gpus = findings(check_json({}, &machine), "gpu");
  ASSERT_EQ(gpus.size(), 2U);
  EXPECT_THAT(text_of(gpus[0]), AllOf(StartsWith("good: "), EndsWith("/dev/dri/renderD128 ()")));
  EXPECT_THAT(text_of(gpus[1]), StartsWith("warning: 1 GPU hidden from this process (a device cgroup"));
}

TEST_F(CheckTest, AGpuWithoutItsRenderNodeIsAProblem) {
  const vamdgpu::Machine machine = vamdgpu::Machine::create(small_machine());
  const std::filesystem::path hidden = machine.directory() / "hidden";
  std::filesystem::remove(hidden);  // may not be written
  std::ofstream(hidden) << "render 129\n";
  const std::vector<json> gpus = findings(check_json({}, &machine), "gpu");
  ASSERT_EQ(gpus.size(), 2U);
  EXPECT_THAT(text_of(gpus[0]), StartsWith("good: "));
  EXPECT_THAT(text_of(gpus[1]), AllOf(StartsWith("problem: "), HasSubstr("/dev/dri/renderD129: "),
                                      HasSubstr("criu needs every GPU's render node, in a container too")));
}

TEST_F(CheckTest, ARenderNodeOfAnotherDriverIsAProblem) {
  constexpr std::uint32_t kDrmVersionNr = 0;
  const vamdgpu::Machine machine = vamdgpu::Machine::create(small_machine());
  vamdgpu::Control::open(machine.directory().string())
      ->inject({.device = vamdgpu::On::Render, .nr = kDrmVersionNr, .error = EINVAL, .times = 0});
  EXPECT_THAT(told(check_json({}, &machine), "gpu"),
              AllOf(StartsWith("problem: "), HasSubstr("/dev/dri/renderD128 is not amdgpu's")));
}

TEST_F(CheckTest, WhatAnOldKernelLacksIsTold) {
  vamdgpu::MachineOptions options = small_machine();
  options.list_handles = false;
  options.kfd_minor_version = 14;
  const vamdgpu::Machine old = vamdgpu::Machine::create(options);
  const json object = check_json({}, &old);
  EXPECT_THAT(told(object, "kfd"), StartsWith("good: interface 1.14"));
  EXPECT_THAT(told(object, "drm"), HasSubstr("does not list BOs of render nodes (Linux 6.18 does)"));
  options.kfd_minor_version = 7;
  const vamdgpu::Machine older = vamdgpu::Machine::create(options);
  EXPECT_THAT(told(check_json({}, &older), "kfd"),
              AllOf(StartsWith("problem: KFD interface 1.7 found"), HasSubstr("use Linux 6.1 or newer")));
}

TEST_F(CheckTest, TheDriverThatRunsIsTold) {
  vamdgpu::MachineOptions options = small_machine();
  const vamdgpu::Machine linux_own = vamdgpu::Machine::create(options);
  utsname names{};
  ASSERT_EQ(::uname(&names), 0);
  EXPECT_THAT(told(check_json({}, &linux_own), "kfd"),
              HasSubstr(std::string(", the amdgpu of Linux ") + names.release));
  options.out_of_tree = "6.14.14";
  const vamdgpu::Machine amds = vamdgpu::Machine::create(options);
  EXPECT_THAT(told(check_json({}, &amds), "kfd"),
              HasSubstr(std::string(", AMD's out-of-tree amdgpu 6.14.14 on Linux ") + names.release));
}

TEST_F(CheckTest, AKernelThatLosesRunningKernelsIsAWarningOnGfx9) {
  vamdgpu::MachineOptions options = small_machine();
  const vamdgpu::Machine lossy = vamdgpu::Machine::create(options);
  EXPECT_THAT(told(check_json({}, &lossy), "waves"),
              AllOf(StartsWith("warning: "), HasSubstr("SLUICE_WAVES_TIMEOUT")));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(lossy.directory())) {
    if (entry.path().filename() != "properties") continue;
    std::string text = lookalike::read_file(entry.path());
    if (const std::size_t at = text.find("gfx_target_version 90010"); at != std::string::npos)
      text.replace(at, std::string_view("gfx_target_version 90010").size(), "gfx_target_version 100300");
    std::ofstream(entry.path()) << text;
  }
  EXPECT_TRUE(findings(check_json({}, &lossy), "waves").empty());
  options.kfd_minor_version = 17;
  const vamdgpu::Machine older = vamdgpu::Machine::create(options);
  EXPECT_TRUE(findings(check_json({}, &older), "waves").empty());
}

TEST_F(CheckTest, AGpuOfSeveralDiesIsAWarning) {
  vamdgpu::MachineOptions options = small_machine();
  const vamdgpu::Machine of_one = vamdgpu::Machine::create(options);
  EXPECT_TRUE(findings(check_json({}, &of_one), "dies").empty());
  options.preset = vamdgpu::Preset::Mi300x;
  const vamdgpu::Machine whole = vamdgpu::Machine::create(options);
  EXPECT_THAT(told(check_json({}, &whole), "dies"), AllOf(StartsWith("warning: "), HasSubstr("CPX")));
}

TEST_F(CheckTest, AKfdThatMayNotBeAskedIsNoMissingOne) {
  constexpr std::uint32_t kGetVersionNr = 1;
  const vamdgpu::Machine machine = vamdgpu::Machine::create(small_machine());
  vamdgpu::Control::open(machine.directory().string())
      ->inject({.device = vamdgpu::On::Kfd, .nr = kGetVersionNr, .error = EACCES, .times = 0});
  EXPECT_THAT(
      told(check_json({}, &machine), "kfd"),
      AllOf(StartsWith("problem: "), HasSubstr("Permission denied"), HasSubstr("the group that owns")));
}

TEST_F(CheckTest, AKfdWithoutItsTopologyIsAProblem) {
  const vamdgpu::Machine machine = vamdgpu::Machine::create(small_machine());
  std::filesystem::remove_all(machine.directory() / "sysfs/sys/devices/virtual/kfd/kfd/topology/nodes");
  EXPECT_THAT(told(check_json({}, &machine), "topology"),
              AllOf(StartsWith("problem: "), HasSubstr("criu must see the host's /sys")));
}

TEST_F(CheckTest, WhereIoUringIsRefusedADumpIsSlower) {
  EXPECT_THAT(
      told(check_json({}, nullptr, {}, [] { refuse_system_call(SYS_io_uring_setup, EPERM); }), "io_uring"),
      AllOf(StartsWith("warning: "), HasSubstr("threads do its work, slower"),
            HasSubstr("kernel.io_uring_disabled=0")));
}

TEST_F(CheckTest, MemoryThatMayNotBeLockedIsTold) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give up a capability and stay root";
  const auto with_limit = [this](rlim_t bytes) {
    const auto limit_it = [bytes] {
      const rlimit limit = {bytes, bytes};
      if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) ::_exit(126);
      give_up_capabilities({CAP_IPC_LOCK});
    };
    return told(check_json({}, nullptr, {"SLUICE_STAGING_SIZE=2M"}, limit_it), "memlock");
  };
  EXPECT_THAT(
      with_limit(4096),
      AllOf(StartsWith("warning: only 4.00 KiB may be locked, the staging memory is 2.00 MiB per GPU"),
            HasSubstr("ulimit -l unlimited")));
  EXPECT_THAT(with_limit(2 * kMiB), StartsWith("good: "));
}

TEST_F(CheckTest, StagingMemoryThatTheMachineLacksIsAProblem) {
  struct sysinfo machine {};
  ASSERT_EQ(::sysinfo(&machine), 0);
  if (machine.totalram * machine.mem_unit >= 64 * kGiB)
    GTEST_SKIP() << "this machine has enough for any setting";
  EXPECT_THAT(told(check_json({}, nullptr, {"SLUICE_STAGING_SIZE=64G"}), "memory"),
              AllOf(StartsWith("problem: "), HasSubstr("64.0 GiB of staging memory needed per GPU"),
                    HasSubstr("lower SLUICE_STAGING_SIZE")));
}

// With many GPUs each has less of it, and a dump uses that of all of them at once.
TEST_F(CheckTest, StagingMemoryIsCountedForAllGpus) {
  vamdgpu::MachineOptions options = small_machine();
  options.gpus = 8;
  const vamdgpu::Machine machine = vamdgpu::Machine::create(options);
  const json object = check_json({}, &machine);
  EXPECT_THAT(told(object, "memory"), HasSubstr("256 MiB of staging memory needed for 8 GPUs"));
  EXPECT_THAT(told(object, "memlock"), HasSubstr("256 MiB for 8 GPUs"));
}

TEST_F(CheckTest, WhatIsNoDirectoryIsNotToBeMade) {
  for (const char* path : {"/dev/null", "/dev/null/images"}) {
    const std::string text = told(check_json({"--dir", path}, nullptr), "directory");
    EXPECT_THAT(text,
                AllOf(StartsWith("problem: "), HasSubstr("Not a directory"), Not(HasSubstr("make it"))));
  }
  EXPECT_THAT(told(check_json({"--dir", "/nowhere"}, nullptr), "directory"), HasSubstr("make it"));
}

TEST_F(CheckTest, TheKeyIsTold) {
  const std::string path = tools_.path() / "key";
  const std::string setting = "SLUICE_KEY_FILE=" + path;
  const auto key = [&](const std::string& as) { return told(check_json({}, nullptr, {as}), "key"); };
  EXPECT_THAT(key("SLUICE_KEY_FILE=none"), StartsWith("good: none"));
  EXPECT_THAT(key(setting),
              AllOf(StartsWith("problem: SLUICE_KEY_FILE: "), HasSubstr("openssl rand -hex 32")));
  std::ofstream(path) << std::string(64, '7') << '\n';
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  EXPECT_THAT(key(setting), AllOf(StartsWith("problem: SLUICE_KEY_FILE: "), HasSubstr("mode 0600")));
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_EQ(key(setting), "good: images are made with the key in " + path + ", and no others restored ()");
}

TEST_F(CheckTest, WhoMayNotDumpIsTold) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give up a capability and stay root";
  const auto without = [this](const std::vector<int>& capabilities) {
    return told(check_json({}, nullptr, {}, [&] { give_up_capabilities(capabilities); }), "permission");
  };
  EXPECT_THAT(without({CAP_SYS_ADMIN}), StartsWith("good: "));  // the newer ones are enough
  for (const int also : {CAP_CHECKPOINT_RESTORE, CAP_SYS_PTRACE}) {
    EXPECT_THAT(without({CAP_SYS_ADMIN, also}),
                AllOf(StartsWith("problem: this user may not dump"), HasSubstr("run as root on the host")));
  }
}

// ---- processes

// A child that does nothing for as long as the object lives.
class IdleChild {
 public:
  // Returns when the child has called `first`.
  explicit IdleChild(const std::function<void()>& first = {}) {
    std::array<int, 2> ready{};
    if (::pipe2(ready.data(), O_CLOEXEC) != 0)
      throw std::system_error(errno, std::generic_category(), "pipe2");
    pid_ = ::fork();
    if (pid_ == 0) {
      if (first) first();
      (void)::close(ready[1]);
      for (;;) (void)::pause();
    }
    (void)::close(ready[1]);
    char none = 0;
    EXPECT_EQ(::read(ready[0], &none, 1), 0);
    (void)::close(ready[0]);
  }
  ~IdleChild() {
    (void)::kill(pid_, SIGKILL);
    (void)::waitpid(pid_, nullptr, 0);
  }
  IdleChild(const IdleChild&) = delete;
  IdleChild& operator=(const IdleChild&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

TEST_F(CheckTest, AThreadIsNoProcess) {
  pid_t tid = 0;
  json object;
  std::thread([&] {
    tid = ::gettid();
    object = check_json({"--pid", std::to_string(tid)}, nullptr);
  }).join();
  EXPECT_EQ(told(object, "process"), "problem: " + std::to_string(tid) + " is a thread of process " +
                                         std::to_string(::getpid()) + " (name the process)");
}

TEST_F(CheckTest, AProcessThatIsTracedIsAProblem) {
  const IdleChild child;
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, child.pid(), nullptr, nullptr), 0);
  const json object = check_json({"--pid", std::to_string(child.pid())}, nullptr);
  EXPECT_EQ(told(object, "process"), "problem: process " + std::to_string(child.pid()) + " is traced by " +
                                         std::to_string(::gettid()) +
                                         " (wait for the other dump, or end the debugger)");
}

TEST_F(CheckTest, AProcessWithoutAGpuGivesThePluginNothingToDo) {
  const IdleChild child;
  EXPECT_THAT(told(check_json({"--pid", std::to_string(child.pid())}, nullptr), "process"),
              AllOf(StartsWith("warning: "), HasSubstr(": 1 process, 0 with GPUs, GPU memory not told"),
                    HasSubstr("the plugin will have nothing to do")));
}

TEST_F(CheckTest, AProcessThatMayNotBeLookedAtIsAProblem) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  constexpr uid_t kNobody = 65534;
  const IdleChild child([] {
    if (::setresuid(kNobody, kNobody, kNobody) != 0 || ::prctl(PR_SET_DUMPABLE, 1) != 0) ::_exit(126);
  });
  const json object = check_json({"--pid", std::to_string(child.pid())}, nullptr, {}, [] {
    give_up_capabilities({CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE});
  });
  EXPECT_THAT(told(object, "process"),
              AllOf(StartsWith("problem: "), HasSubstr("Permission denied"), EndsWith(" (run as root)")));
}

TEST_F(CheckTest, ChildrenAreOfTheDump) {
  const vamdgpu::Machine machine = vamdgpu::Machine::create(small_machine());
  lookalike::Program subject = start_subject(machine, {"--vram", "1M", "--gtt", "1M", "--fork-child"});
  EXPECT_THAT(told(check_json({"--pid", std::to_string(subject.pid())}, &machine), "process"),
              AllOf(StartsWith("good: "), HasSubstr(": 2 processes, 2 with GPUs, ")));
}

TEST_F(CheckTest, AnOpenDmaBufIsWarnedOf) {
  const vamdgpu::Machine machine = vamdgpu::Machine::create(small_machine());
  lookalike::Program subject = start_subject(machine, {"--vram", "1M", "--gtt", "1M", "--dmabuf-fd"});
  const json object = check_json({"--pid", std::to_string(subject.pid())}, &machine);
  EXPECT_THAT(told(object, "process"), HasSubstr(", 1 open dma-buf"));
  EXPECT_THAT(told(object, "dma-buf"),
              AllOf(StartsWith("warning: an open dma-buf whose memory is of no /dev/kfd"),
                    HasSubstr("close dma-bufs")));
}

// Who has imported whose memory is known only when processes are stopped.
TEST_F(CheckTest, OtherGpuProcessesAreWarnedOfWhereTheDriverHasIpcHandles) {
  const auto told_of_ipc = [this](const std::string& driver, bool others) {
    vamdgpu::MachineOptions options = small_machine();
    options.out_of_tree = driver;
    const vamdgpu::Machine machine = vamdgpu::Machine::create(options);
    lookalike::Program subject = start_subject(machine, {"--vram", "1M", "--gtt", "1M"});
    const std::filesystem::path processes = machine.directory() / "sysfs/sys/devices/virtual/kfd/kfd/proc";
    std::filesystem::create_directories(processes / std::to_string(subject.pid()));
    if (others) std::filesystem::create_directory(processes / "1");
    const std::vector<json> told =
        findings(check_json({"--pid", std::to_string(subject.pid())}, &machine), "ipc");
    return told.empty() ? std::string() : text_of(told.front());
  };
  EXPECT_THAT(told_of_ipc("6.14.14", true),
              AllOf(StartsWith("warning: 1 other process on the GPUs"), HasSubstr("as one tree")));
  EXPECT_EQ(told_of_ipc("6.14.14", false), "");
  EXPECT_EQ(told_of_ipc("", true), "");
}

// What the KFD says of a process' VRAM counts against the room in the directory.
TEST_F(CheckTest, GpuMemoryIsComparedWithTheSpace) {
  const vamdgpu::Machine machine = vamdgpu::Machine::create(small_machine());
  const IdleChild child;
  const std::filesystem::path told_by_kfd =
      machine.directory() / "sysfs/sys/devices/virtual/kfd/kfd/proc" / std::to_string(child.pid());
  std::filesystem::create_directories(told_by_kfd);
  // The first GPU has 4096 bytes of it.
  std::vector<std::filesystem::path> of_gpus;
  for (const auto& node : machine.description().tree.topology.nodes) {
    if (node.gpu_id != 0) of_gpus.push_back(told_by_kfd / ("vram_" + std::to_string(node.gpu_id)));
  }
  ASSERT_EQ(of_gpus.size(), 2U);
  std::ofstream(of_gpus[0]) << "4096\n";
  const auto space = [&](std::uint64_t bytes) {
    std::ofstream(of_gpus[1]) << bytes << '\n';
    const json object =
        check_json({"--pid", std::to_string(child.pid()), "--dir", tools_.path().string()}, &machine);
    EXPECT_EQ(object["gpu_bytes"], 4096 + bytes);
    return told(object, "space");
  };
  EXPECT_THAT(space(4096), AllOf(StartsWith("good: "), HasSubstr(" free for 8.00 KiB of GPU memory")));
  EXPECT_THAT(space(std::uint64_t{1} << 60),
              AllOf(StartsWith("problem: "), HasSubstr("the process has 1.00 EiB of GPU memory"),
                    HasSubstr("what several GPUs have alike may be written once"),
                    HasSubstr("free space, or name another directory")));
}

// ---- what CRIU refuses, or wants an option for: as this machine's kernel shows it

class CheckedProcess : public CheckTest {
 protected:
  CheckedProcess() : machine_(vamdgpu::Machine::create(small_machine())) {}

  // What check says of a child that has called `first`, in a session of its own.
  json check_child(const std::function<void()>& first, const std::string& criu = "4.2") {
    make_criu("echo 'Version: " + criu + "'");
    const IdleChild child([&] {
      (void)::setsid();
      (void)::close_range(0, 2, 0);
      for (int fd = 0; fd < 3; ++fd) (void)!::open("/dev/null", O_RDWR);
      first();
    });
    pid_ = child.pid();
    const Strings arguments = {"--pid", std::to_string(pid_), "--dir", tools_.path().string()};
    text_ = check(arguments, &machine_).out;
    return check_json(arguments, &machine_);
  }
  // Codes of what is said of files, maps, sockets and processes, each once.
  static std::set<std::string> codes(const json& object) {
    std::set<std::string> found;
    for (const json& one : object["findings"]) {
      for (const char* subject : {"file", "map", "socket", "process"}) {
        if (one["subject"] == subject && one["weight"] != "good" && one["code"] != "no-gpu")
          found.insert(one["code"]);
      }
    }
    return found;
  }
  std::vector<std::string> command(const std::vector<std::string>& options) const {
    std::vector<std::string> words = {
        "criu", "dump", "-t", std::to_string(pid_), "-D", tools_.path().string()};
    words.insert(words.end(), options.begin(), options.end());
    return words;
  }

  vamdgpu::Machine machine_;
  pid_t pid_ = 0;
  std::string text_;
};

using Codes = std::set<std::string>;

TEST_F(CheckedProcess, OneWithoutAnythingIsDumpedByThePlainCommand) {
  if (::geteuid() != 0) GTEST_SKIP() << "a dump will work for root only";
  const json object = check_child([] {});
  EXPECT_EQ(codes(object), Codes());
  EXPECT_EQ(object["criu_command"], json(command({}))) << object;
}

TEST_F(CheckedProcess, AnIoUringIsRefusedAndNoCommandIsGiven) {
  const json object = check_child([] {
    io_uring_params parameters{};
    const auto ring = static_cast<int>(::syscall(SYS_io_uring_setup, 8, &parameters));
    if (ring < 0) ::_exit(0);
  });
  if (codes(object) == Codes{"no-process"}) GTEST_SKIP() << "io_uring is forbidden here";
  EXPECT_EQ(codes(object), Codes{"io-uring"}) << object;
  EXPECT_EQ(object["result"], "refused");
  EXPECT_TRUE(object["criu_command"].is_null());
}

TEST_F(CheckedProcess, LocksAndConnectionsNeedOptions) {
  if (::geteuid() != 0) GTEST_SKIP() << "a dump will work for root only";
  const json object = check_child([this] {
    const int file = ::open((tools_.path() / "locked").c_str(), O_RDWR | O_CREAT, 0600);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    const int server = ::socket(AF_INET, SOCK_STREAM, 0);
    const int client = ::socket(AF_INET, SOCK_STREAM, 0);
    auto* const at = reinterpret_cast<sockaddr*>(&address);
    if (::flock(file, LOCK_EX) != 0 || ::bind(server, at, length) != 0 || ::listen(server, 4) != 0 ||
        ::getsockname(server, at, &length) != 0 || ::connect(client, at, length) != 0)
      ::_exit(1);
  });
  EXPECT_EQ(codes(object), (Codes{"file-lock", "tcp-established", "tcp-in-flight"})) << object;
  std::vector<std::string> words = object["criu_command"];
  std::sort(words.begin(), words.end());
  std::vector<std::string> expected = command({"--file-locks", "--tcp-established", "--skip-in-flight"});
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(words, expected);
  EXPECT_THAT(object["findings"].dump(), HasSubstr("\"weight\":\"option\""));
  EXPECT_THAT(text_, HasSubstr("A dump will work with the command above"));
}

TEST_F(CheckedProcess, DeletedFilesNeedTheLimitOfTheLargest) {
  if (::geteuid() != 0) GTEST_SKIP() << "a dump will work for root only";
  const json object = check_child([this] {
    for (const std::size_t bytes :
         {std::size_t{1} << 10U, std::size_t{2} << 20U, (std::size_t{4} << 20U) + 1}) {
      const std::string path = tools_.path() / "deleted";
      const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
      const std::vector<char> text(bytes, 'x');
      if (::write(file, text.data(), bytes) != static_cast<ssize_t>(bytes) || ::unlink(path.c_str()) != 0)
        ::_exit(1);
    }
  });
  EXPECT_EQ(codes(object), Codes{"deleted-file"}) << object;
  EXPECT_EQ(object["criu_command"], json(command({"--ghost-limit", "5M"})));
}

// A semaphore that was unlinked before it was opened for the last time has the name that the C library made.
TEST_F(CheckedProcess, AFileWithoutItsOwnNameNeedsAnother) {
  if (::geteuid() != 0) GTEST_SKIP() << "a dump will work for root only";
  const json object = check_child([this] {
    const std::string path = tools_.path() / "name";
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT, 0600);
    if (::ftruncate(file, 4096) != 0 || ::link(path.c_str(), (tools_.path() / "other").c_str()) != 0 ||
        ::unlink(path.c_str()) != 0 || ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0) == MAP_FAILED ||
        ::close(file) != 0)
      ::_exit(1);
  });
  EXPECT_EQ(codes(object), Codes{"link-remap"}) << object;
  EXPECT_EQ(object["criu_command"], json(command({"--link-remap"})));
}

TEST_F(CheckedProcess, SocketsWithTheOtherEndHereNeedTheirNumber) {
  if (::geteuid() != 0) GTEST_SKIP() << "a dump will work for root only";
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  struct stat status {};
  ASSERT_EQ(::fstat(ends[1], &status), 0);
  const json object = check_child([&] { (void)::close(ends[0]); });
  EXPECT_EQ(codes(object), Codes{"unix-nameless"}) << object;
  EXPECT_EQ(object["criu_command"],
            json(command({"--external", "unix[" + std::to_string(status.st_ino) + "]"})));
  for (const int end : ends) (void)::close(end);
}

TEST_F(CheckedProcess, ANetworkNamespaceOfItsOwnIsEntered) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes a namespace";
  std::array<int, 2> ready{};
  const json object = check_child([&] {
    if (::unshare(CLONE_NEWNET) != 0) ::_exit(1);
    (void)::socketpair(AF_UNIX, SOCK_STREAM, 0, ready.data());
  });
  if (codes(object) == Codes{"no-process"}) GTEST_SKIP() << "no namespace can be made here";
  EXPECT_EQ(codes(object), Codes()) << object;
}

// Nothing can be known of what another plugin does.
TEST_F(CheckedProcess, ADeviceMayBeAnotherPlugins) {
  const std::string device = tools_.path() / "device";
  if (::mknod(device.c_str(), S_IFCHR | 0600, makedev(10, 234)) != 0)
    GTEST_SKIP() << "no device files can be made here";
  const std::filesystem::path plugins = tools_.path() / "plugins";
  std::filesystem::create_directory(plugins);
  std::filesystem::copy_file(SLUICE_PLUGIN, plugins / "amdgpu_plugin.so");
  const IdleChild child([&] {
    (void)::setsid();
    (void)::close_range(0, 2, 0);
    if (::open(device.c_str(), O_PATH) < 0) ::_exit(1);
  });
  const auto found = [&] {
    return codes(object_of(
        sluice({"check", "--json", "--pid", std::to_string(child.pid())}, &machine_,
               {"PATH=" + tools_.path().string() + ":/usr/bin:/bin", "CRIU_LIBS_DIR=" + plugins.string()})));
  };
  EXPECT_TRUE(found().contains("device"));
  std::ofstream(plugins / "notes.txt") << "no plugin";
  EXPECT_TRUE(found().contains("device"));
  std::ofstream(plugins / "other.so") << "a plugin";
  EXPECT_TRUE(found().contains("device-of-other-plugin"));
}

TEST_F(CheckedProcess, AFileOfAProcessIsTaken) {
  if (::geteuid() != 0) GTEST_SKIP() << "a dump will work for root only";
  const json object = check_child([] {
    if (::open("/proc/self/status", O_RDONLY) < 0 || ::open("/proc/self", O_RDONLY | O_DIRECTORY) < 0)
      ::_exit(1);
  });
  EXPECT_EQ(codes(object), Codes()) << object;
}

TEST_F(CheckedProcess, ACommandIsPrintedForAShell) {
  if (::geteuid() != 0) GTEST_SKIP() << "a dump will work for root only";
  const std::filesystem::path directory = tools_.path() / "two words";
  std::filesystem::create_directory(directory);
  const IdleChild child([] { (void)::setsid(); });
  const std::string pid = std::to_string(child.pid());
  EXPECT_THAT(check({"--pid", pid, "--dir", directory.string()}, &machine_).out,
              HasSubstr("criu dump -t " + pid + " -D '" + directory.string() + "'"));
  EXPECT_THAT(check({"--pid", pid}, &machine_).out, HasSubstr("criu dump -t " + pid + " -D DIR"));
  EXPECT_THAT(check({}, &machine_).out, Not(HasSubstr("criu dump")));
}

TEST(DrmClient, MemoryIsInTheUnitThatIsTold) {
  const auto client = [](const std::string& memory) {
    std::istringstream fdinfo("pos:\t0\ndrm-driver:\tamdgpu\ndrm-pdev:\t0000:63:00.0\ndrm-client-id:\t7\n" +
                              memory);
    return cli::read_drm_client(fdinfo);
  };
  EXPECT_FALSE(client("").has_value());
  EXPECT_EQ(client("drm-memory-vram:\t4096\n")->bytes, 4096U);
  EXPECT_EQ(client("drm-memory-vram:\t3 KiB\ndrm-memory-gtt: \t2 MiB\ndrm-memory-cpu:\t8 KiB\n")->bytes,
            3 * 1024 + 2 * kMiB);
  EXPECT_EQ(client("drm-memory-vram:\t18446744073709551615 KiB\n")->bytes, 0U);  // nobody's
}

// Whoever has a descriptor of the file; the same number on another device is another client.
TEST(DrmClient, IsOfOneDevice) {
  const auto id = [](const std::string& device, const std::string& number) {
    std::istringstream fdinfo("drm-pdev:\t" + device + "\ndrm-client-id:\t" + number +
                              "\ndrm-memory-vram:\t1 KiB\n");
    return cli::read_drm_client(fdinfo)->id;
  };
  EXPECT_EQ(id("0000:63:00.0", "7"), id("0000:63:00.0", "7"));
  EXPECT_NE(id("0000:63:00.0", "7"), id("0000:63:00.0", "8"));
  EXPECT_NE(id("0000:63:00.0", "7"), id("0000:43:00.0", "7"));
}

// ---- directories

TEST_F(CheckTest, ADirectoryInMemoryIsWarnedOf) {
  struct statfs type {};
  if (::statfs("/dev/shm", &type) != 0 || type.f_type != TMPFS_MAGIC) GTEST_SKIP() << "no tmpfs there";
  EXPECT_EQ(
      told(check_json({"--dir", "/dev/shm"}, nullptr), "directory"),
      "warning: /dev/shm on tmpfs: the images are in memory and gone after a boot (name a directory on a "
      "disk)");
}

TEST_F(CheckTest, FilesWithoutDirectIoAreTold) {
  const json object = check_json({"--dir", "/proc/self"}, nullptr);
  EXPECT_THAT(told(object, "directory"), HasSubstr("/proc/self on unknown"));
  EXPECT_THAT(told(object, "direct-io"),
              AllOf(StartsWith("warning: no direct I/O: "), HasSubstr("use a directory on ext4 or xfs")));
}

// A file that may not be opened cannot be asked, nor can one that is none.
TEST_F(CheckTest, WithoutAFileToAskDirectIoIsNotKnown) {
  const lookalike::ScratchDirectory directory;
  const auto direct_io = [&] {
    return told(check_json({"--dir", directory.path().string()}, nullptr, {},
                           [] {
                             if (::geteuid() == 0)
                               give_up_capabilities({CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH});
                           }),
                "direct-io");
  };
  EXPECT_THAT(direct_io(), StartsWith("good: not known"));
  std::filesystem::create_directory(directory.path() / "no-file");
  EXPECT_THAT(direct_io(), StartsWith("good: not known"));
  const std::filesystem::path file = directory.path() / "file";
  std::ofstream(file) << "text";
  ASSERT_EQ(::chmod(file.c_str(), 0), 0);
  EXPECT_THAT(direct_io(), StartsWith("good: not known"));
  ASSERT_EQ(::chmod(file.c_str(), 0400), 0);
  EXPECT_THAT(direct_io(), Not(HasSubstr("not known")));
}

TEST_F(CheckTest, ADirectoryThatCannotBeWrittenIsAProblem) {
  const lookalike::ScratchDirectory directory;
  ASSERT_EQ(::chmod(directory.path().c_str(), 0500), 0);
  const Strings command = {"--dir", directory.path().string()};
  EXPECT_THAT(told(check_json(command, nullptr, {},
                              [] {
                                if (::geteuid() == 0) give_up_capabilities({CAP_DAC_OVERRIDE});
                              }),
                   "directory"),
              AllOf(StartsWith("problem: "), HasSubstr("Permission denied (run as root, or name another)")));
  if (!may_mount()) GTEST_SKIP() << "nothing can be mounted read-only here";
  EXPECT_THAT(
      told(check_json(command, nullptr, {},
                      [&] { mount_over(directory.path().string(), directory.path().string(), true); }),
           "directory"),
      AllOf(StartsWith("problem: "), EndsWith(" is read-only (name a directory that can be written)")));
}

TEST_F(CheckTest, ADirectoryThatTellsNothingOfItselfIsAProblem) {
  const json object = check_json({"--dir", tools_.path().string()}, nullptr, {},
                                 [] { refuse_system_call(SYS_fstatfs, EIO); });
  EXPECT_THAT(told(object, "directory"), AllOf(StartsWith("problem: "), HasSubstr("Input/output error")));
}

TEST_F(CheckTest, WrongProcessesAndDirectoriesAreProblems) {
  const json object =
      object_of(check({"--json", "--pid", "2147483647", "--dir", "/does/not/exist"}, nullptr));
  EXPECT_EQ(finding(object, "process")["weight"], "problem");
  EXPECT_EQ(finding(object, "directory")["weight"], "problem");
  EXPECT_EQ(check({"--pid", "0"}, nullptr).status, kUsage);
  EXPECT_EQ(check({"--pid", "none"}, nullptr).status, kUsage);
}

}  // namespace
}  // namespace sluice::cli_test
