// SPDX-License-Identifier: MIT
// What CRIU refuses, or wants an option for, in a made-up /proc: versions, devices and tables that a test's
// machine does not have. What the kernel itself shows is in check_test.cc, what criu does in
// tests/vm/scenarios.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cli/check/criu_binary.h"
#include "cli/check/dump_obstacles.h"
#include "cli/text.h"
#include "support/temp_dir.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kLimits =
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max open files            1024                 4096                 files     \n"
    "Max address space         unlimited            unlimited            bytes     \n";

class MadeProc {
 public:
  MadeProc() { add("self"); }

  // A process, leader of its session, in the namespaces of all.
  void add(const std::string& name) {
    const fs::path process = fs::path(directory_.path()) / name;
    for (const char* part : {"fd", "fdinfo", "ns", "map_files"}) fs::create_directories(process / part);
    write(name, "status",
          "Name:\tmade\nState:\tS (sleeping)\nNSpid:\t" + name + "\nNSsid:\t" + name +
              "\nThreads:\t1\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n");
    write(name, "stat", name + " (made) S 1 " + name + " " + name + " 0 -1 0\n");
    write(name, "limits", kLimits);
    std::size_t number = 4026531835;
    for (const char* kind : kNamespaces) set_namespace(name, kind, ++number);
    set_namespace(name, "pid", 0xEFFFFFFC);
    set_namespace(name, "time_for_children", 4026531841);
  }
  void write(const std::string& process, const std::string& file, const std::string& text) {
    std::ofstream(fs::path(directory_.path()) / process / file) << text;
  }
  void set_namespace(const std::string& process, const std::string& kind, std::uint64_t inode) {
    link(process, "ns/" + kind, kind + ":[" + std::to_string(inode) + "]");
  }
  void open(const std::string& process, int fd, const std::string& what) {
    link(process, "fd/" + std::to_string(fd), what);
  }
  fs::path path() const { return directory_.path(); }

  // Everything that is found of processes, the first one the root.
  Obstacles look(const std::vector<pid_t>& pids, DumpSurroundings around = {}) const {
    around.proc = directory_.path();
    around.self = fs::path(directory_.path()) / "self";
    const auto tree = read_dump_tree(pids, around.proc);
    EXPECT_TRUE(tree.ok());
    Obstacles found;
    find_process_obstacles(*tree, around, found);
    find_file_obstacles(*tree, around, found);
    find_map_obstacles(*tree, around, found);
    find_socket_obstacles(*tree, around, found);
    return found;
  }

 private:
  void link(const std::string& process, const std::string& name, const std::string& what) {
    const fs::path path = fs::path(directory_.path()) / process / name;
    fs::remove(path);
    fs::create_symlink(what, path);
  }
  test::TempDir directory_;
};

std::vector<std::string> codes(const Obstacles& found) {
  std::vector<std::string> all;
  for (const Finding& finding : found.findings()) all.push_back(finding.code);
  return all;
}

DumpSurroundings with_criu(int major, int minor) {
  DumpSurroundings around;
  around.criu = CriuVersion{major, minor, 0};
  return around;
}

TEST(Obstacles, AProcessWithoutAnyHasNone) {
  MadeProc proc;
  proc.add("7");
  for (const char* taken : {"[eventfd]", "[eventpoll]", "inotify", "[fanotify]", "[signalfd]", "[timerfd]"})
    proc.open("7", 3, std::string("anon_inode:") + taken);
  proc.open("7", 4, "pipe:[5]");
  proc.open("7", 5, "/dev/null");
  proc.open("7", 6, "/dev/zero");
  EXPECT_THAT(codes(proc.look({7})), IsEmpty());
}

TEST(Obstacles, AnRdmaDeviceIsTold) {
  MadeProc proc;
  proc.add("7");
  fs::create_directories(proc.path() / "dev/infiniband");
  fs::create_symlink("/dev/null", proc.path() / "dev/infiniband/uverbs0");
  proc.open("7", 3, proc.path() / "dev/infiniband/uverbs0");
  const Findings findings = proc.look({7}).findings();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, "rdma");
  EXPECT_EQ(findings[0].weight, Weight::Problem);
  EXPECT_THAT(findings[0].text, HasSubstr("descriptor 3 of process 7 is "));
  EXPECT_THAT(findings[0].text, HasSubstr("infiniband/uverbs0"));
}

// The first is named, the others are counted.
TEST(Obstacles, OneReasonIsToldOnce) {
  MadeProc proc;
  proc.add("7");
  for (int fd = 3; fd < 103; ++fd) proc.open("7", fd, "anon_inode:[io_uring]");
  proc.write("7", "maps", "7f0000000000-7f0000001000 rw-s 00000000 00:10 1 anon_inode:[io_uring]\n");
  const Findings findings = proc.look({7}).findings();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, "io-uring");
  EXPECT_THAT(findings[0].text,
              StartsWith("descriptor 3 of process 7 is an io_uring (anon_inode:[io_uring])"));
  EXPECT_THAT(findings[0].text, HasSubstr("and 100 more"));
}

TEST(Obstacles, OfManyReasonsOfAKindSomeAreNamed) {
  MadeProc proc;
  proc.add("7");
  for (int fd = 3; fd < 103; ++fd) proc.open("7", fd, "anon_inode:kind-" + std::to_string(fd));
  const Findings findings = proc.look({7}).findings();
  ASSERT_EQ(findings.size(), 8U);
  EXPECT_THAT(findings.back().text, HasSubstr("and 92 more"));
}

TEST(Obstacles, MapsOfANewerKernelAreAMatterOfTheVersion) {
  MadeProc proc;
  proc.add("7");
  proc.write("7", "maps", "7fff00000000-7fff00001000 r--p 00000000 00:00 0 [vvar_vclock]\n");
  EXPECT_THAT(codes(proc.look({7}, with_criu(4, 0))), ElementsAre("criu-kernel"));
  EXPECT_THAT(codes(proc.look({7}, with_criu(4, 1))), IsEmpty());
  EXPECT_THAT(codes(proc.look({7})), IsEmpty());  // not known: taken for the newest
}

TEST(Obstacles, ProbesAreAMatterOfTheVersion) {
  MadeProc proc;
  proc.add("7");
  proc.write("7", "maps", "7fff00000000-7fff00001000 --xp 00000000 00:00 0 [uprobes]\n");
  EXPECT_THAT(codes(proc.look({7}, with_criu(4, 1))), ElementsAre("uprobes"));
  const Obstacles found = proc.look({7}, with_criu(4, 2));
  EXPECT_THAT(codes(found), ElementsAre("uprobes-left-out"));
  EXPECT_THAT(found.options(), ElementsAre("--allow-uprobes"));
}

TEST(Obstacles, PidfdsAreAMatterOfTheVersionAndOfTheTree) {
  MadeProc proc;
  proc.add("7");
  proc.add("8");
  for (const char* link : {"anon_inode:[pidfd]", "pidfd:[9]"}) {
    proc.open("7", 3, link);
    proc.write("7", "fdinfo/3", "pos:\t0\nflags:\t02000002\nPid:\t8\n");
    EXPECT_THAT(codes(proc.look({7, 8}, with_criu(4, 0))), ElementsAre("pidfd"));
    EXPECT_THAT(codes(proc.look({7, 8}, with_criu(4, 1))), IsEmpty());
    EXPECT_THAT(codes(proc.look({7}, with_criu(4, 1))), ElementsAre("pidfd-outside"));
    proc.write("7", "fdinfo/3", "pos:\t0\nflags:\t02000002\nPid:\t-1\n");  // it has ended
    EXPECT_THAT(codes(proc.look({7}, with_criu(4, 1))), IsEmpty());
    proc.write("7", "fdinfo/3", "pos:\t0\nflags:\t02000202\nPid:\t7\n");  // PIDFD_THREAD
    EXPECT_THAT(codes(proc.look({7}, with_criu(4, 1))), ElementsAre("anon-inode"));
  }
}

TEST(Obstacles, BpfMapsAreAMatterOfTheBuild) {
  MadeProc proc;
  proc.add("7");
  proc.open("7", 3, "anon_inode:bpf-map");
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("bpf"));
  DumpSurroundings with_bpf;
  with_bpf.criu_dumps_bpf_maps = true;
  EXPECT_THAT(codes(proc.look({7}, with_bpf)), IsEmpty());
  proc.open("7", 3, "anon_inode:bpf-prog");
  EXPECT_THAT(codes(proc.look({7}, with_bpf)), ElementsAre("anon-inode"));
}

TEST(Obstacles, ADeviceThatAnotherPluginMayTakeIsAWarning) {
  MadeProc proc;
  proc.add("7");
  const char* device = nullptr;
  for (const char* path : {"/dev/fuse", "/dev/loop-control", "/dev/cpu_dma_latency", "/dev/kvm"}) {
    if (::access(path, F_OK) == 0) device = path;
  }
  if (device == nullptr) GTEST_SKIP() << "no device here that CRIU refuses";
  proc.open("7", 3, device);
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("device"));
  DumpSurroundings around;
  around.other_plugins = true;
  const Findings findings = proc.look({7}, around).findings();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, "device-of-other-plugin");
  EXPECT_EQ(findings[0].weight, Weight::Warning);
  const auto facts = file_facts(device);
  ASSERT_TRUE(facts.ok());
  around.plugin_devices = {facts->number};
  EXPECT_THAT(codes(proc.look({7}, around)), IsEmpty());
}

TEST(Obstacles, WhatHasNoPathIsANamespaceOrNothing) {
  MadeProc proc;
  proc.add("7");
  proc.open("7", 3, "pid:[4026531836]");  // lives in it
  EXPECT_THAT(codes(proc.look({7})), IsEmpty());
  proc.open("7", 3, "net:[1]");
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("namespace-file"));
  proc.open("7", 3, "strange");
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("special-file"));
}

TEST(Obstacles, ANestedNamespaceIsOneThatTheFirstProcessIsNotIn) {
  for (const char* kind : {"pid", "ipc", "uts", "user", "cgroup"}) {
    MadeProc proc;
    proc.add("7");
    proc.add("8");
    proc.set_namespace("8", kind, 99);
    EXPECT_THAT(codes(proc.look({7, 8})), ElementsAre("nested-namespace")) << kind;
    proc.set_namespace("7", kind, 99);
    EXPECT_THAT(codes(proc.look({7, 8})), Not(testing::Contains("nested-namespace"))) << kind;
  }
  MadeProc proc;
  proc.add("7");
  proc.add("8");
  for (const char* kind : {"net", "mnt"}) proc.set_namespace("8", kind, 99);
  EXPECT_THAT(codes(proc.look({7, 8})), IsEmpty());  // CRIU takes these
  proc.set_namespace("7", "time_for_children", 99);
  EXPECT_THAT(codes(proc.look({7, 8})), ElementsAre("nested-namespace"));
}

TEST(Obstacles, AUserNamespaceNeedsItsUserAndGroupZero) {
  MadeProc proc;
  proc.add("7");
  proc.set_namespace("7", "user", 99);
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("user-namespace"));
  proc.write("7", "uid_map", "         0     100000      65536\n");
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("user-namespace"));
  proc.write("7", "gid_map", "         1     100000      65536\n         0          5          1\n");
  EXPECT_THAT(codes(proc.look({7})), IsEmpty());
}

TEST(Obstacles, OfAPidNamespaceTheFirstProcessIsDumped) {
  MadeProc proc;
  proc.add("7");
  proc.set_namespace("7", "pid", 99);
  proc.write("7", "status", "State:\tS (sleeping)\nNSpid:\t7\t1\nNSsid:\t7\t1\n");
  EXPECT_THAT(codes(proc.look({7})), IsEmpty());
  proc.write("7", "status", "State:\tS (sleeping)\nNSpid:\t7\t5\nNSsid:\t7\t5\n");
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("no-init"));
  proc.write("7", "status", "State:\tS (sleeping)\nNSpid:\t7\t1\nNSsid:\t7\t0\n");
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("session-outside"));
}

TEST(Obstacles, AMountNamespaceIsWarnedOf) {
  MadeProc proc;
  proc.add("7");
  proc.set_namespace("7", "mnt", 99);
  const Findings findings = proc.look({7}).findings();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].code, "mount-namespace");
  EXPECT_EQ(findings[0].weight, Weight::Warning);
}

TEST(Obstacles, AFilterIsReadByRootWithoutOne) {
  MadeProc proc;
  proc.add("7");
  proc.write("7", "status", "State:\tS (sleeping)\nNSpid:\t7\nNSsid:\t7\nSeccomp:\t2\n");
  EXPECT_THAT(codes(proc.look({7})), IsEmpty());
  proc.write("self", "status", "CapEff:\t000001ffffffffff\nSeccomp:\t2\n");
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("seccomp"));
  proc.write("self", "status", "CapEff:\t0000010000080000\nSeccomp:\t0\n");  // without CAP_SYS_ADMIN
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("seccomp"));
}

TEST(Obstacles, LimitsHaveToLeaveCriuRoom) {
  MadeProc proc;
  proc.add("7");
  const auto limit = [&](const std::string& descriptors, const std::string& bytes) {
    proc.write("7", "limits",
               "Max open files            " + descriptors + "   4096   files\nMax address space         " +
                   bytes + "   unlimited   bytes\n");
  };
  proc.write("7", "statm", "100 1 1 1 0 1 0\n");
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  proc.open("7", 0, "pipe:[1]");
  proc.open("7", 900, "pipe:[2]");  // beyond the limit, which was lowered: takes no number of it
  limit("5", "unlimited");
  EXPECT_THAT(codes(proc.look({7})), IsEmpty());
  limit("4", "unlimited");
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("descriptor-limit"));
  limit("1024", std::to_string(100 * page));
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("address-space-limit"));
  limit("1024", std::to_string(100 * page + (1U << 20U)));
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("address-space-scarce"));
  limit("1024", std::to_string(100 * page + (8U << 20U)));
  EXPECT_THAT(codes(proc.look({7})), IsEmpty());
}

// The name of a process may hold anything, of a file, too.
TEST(Obstacles, NamesThatLookLikeSomethingElseAreTakenAsNames) {
  MadeProc proc;
  proc.add("7");
  proc.write("7", "stat", "7 (a) S 1 1 1 34816 (b\n) S 1 7 7 0 -1 0\n");
  proc.write("7", "maps", "junk\n\n7f00-\n7f0000000000-7f0000001000 r--p 0 0:0 0 /tmp/[uprobes]\n");
  EXPECT_THAT(codes(proc.look({7})), IsEmpty());
}

TEST(Obstacles, OfVeryManyDescriptorsTheFirstAreLookedAtAndThatIsSaid) {
  MadeProc proc;
  proc.add("7");
  proc.add("8");
  for (int fd = 3; fd < 9; ++fd) proc.open("7", fd, "anon_inode:[io_uring]");
  proc.open("8", 3, "anon_inode:[perf_event]");
  const auto looked_at = [&](std::size_t most) {
    const auto tree = read_dump_tree({7, 8}, proc.path(), most);
    EXPECT_TRUE(tree.ok());
    DumpSurroundings around;
    around.proc = proc.path();
    around.self = proc.path() / "self";
    Obstacles found;
    find_process_obstacles(*tree, around, found);
    find_file_obstacles(*tree, around, found);
    return codes(found);
  };
  EXPECT_THAT(looked_at(4), ElementsAre("not-all-seen", "io-uring"));
  EXPECT_THAT(looked_at(100), ElementsAre("io-uring", "perf-event"));
}

TEST(Obstacles, AProcessThatIsGoneIsLeftOut) {
  MadeProc proc;
  proc.add("7");
  EXPECT_THAT(codes(proc.look({7, 8})), IsEmpty());
}

// ---- the criu that was found

class CriuBinaryTest : public ::testing::Test {
 protected:
  CriuBinary read(const std::string& bytes) {
    const fs::path path = fs::path(directory_.path()) / "criu";
    std::ofstream(path, std::ios::binary) << bytes;
    return read_criu_binary(path);
  }
  static std::string elf(const std::vector<std::string>& strings) {
    std::string bytes = "\177ELF";
    for (const std::string& text : strings) bytes += '\0' + text;
    return bytes + '\0';
  }
  test::TempDir directory_;
};

TEST_F(CriuBinaryTest, TellsWhereItLooksForPlugins) {
  EXPECT_EQ(read(elf({"/usr/lib64/criu/"})).plugin_directory, "/usr/lib64/criu");
  EXPECT_EQ(read(elf({"criu", ".criu/", "/run/criu", "by default /usr/lib/criu)\n", "/opt/lib/criu"}))
                .plugin_directory,
            "/opt/lib/criu");
  EXPECT_EQ(read(elf({"/usr/lib/criu/", "/usr/lib/criu/"})).plugin_directory, "/usr/lib/criu");
}

TEST_F(CriuBinaryTest, TellsNothingThatIsNotSure) {
  EXPECT_FALSE(read(elf({"/usr/lib/criu/", "/usr/lib64/criu/"})).plugin_directory);  // which?
  EXPECT_FALSE(read("#!/bin/sh\nexec /usr/lib64/criu/criu.real\n").plugin_directory);
  EXPECT_FALSE(read(elf({"/usr/lib64/criu/scripts", "/usr/lib64/criuser"})).plugin_directory);
  EXPECT_FALSE(read("\177ELF/usr/lib/criu/").plugin_directory);  // no end
  EXPECT_FALSE(read("").plugin_directory);
  EXPECT_FALSE(read_criu_binary(directory_.path()).plugin_directory);
  EXPECT_FALSE(read_criu_binary(fs::path(directory_.path()) / "none").plugin_directory);
}

TEST_F(CriuBinaryTest, TellsItsVersion) {
  EXPECT_EQ(read(elf({"Version: %s", "4.1.1", "127.0.0.1", "./fd/%d", "1.", ".5"})).version, "4.1.1");
  EXPECT_EQ(read(elf({"4.0", "4.0"})).version, "4.0");
  EXPECT_EQ(read(elf({"4.0", "1.2.11"})).version, "");  // which?
  EXPECT_EQ(read(elf({"4.0rc1", "v4.1", "4..1", "4.1."})).version, "");
}

TEST_F(CriuBinaryTest, TellsWhetherItDumpsBpfMaps) {
  EXPECT_TRUE(read(elf({"libbpf.so.1"})).has_libbpf);
  EXPECT_FALSE(read(elf({"libbsd.so.0"})).has_libbpf);
}

TEST(ShellWord, IsWhatAShellTakesForOneWord) {
  EXPECT_EQ(shell_word("/var/lib/a-b_c.1"), "/var/lib/a-b_c.1");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("two words"), "'two words'");
  EXPECT_EQ(shell_word("unix[17]"), "'unix[17]'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word("a\nb\\c'd"), "$'a\\x0ab\\\\c\\'d'");
}

}  // namespace
}  // namespace sluice::cli
