// SPDX-License-Identifier: MIT
// What CRIU refuses, or wants an option for, in a made-up /proc: versions, devices and tables that a test's
// machine does not have. What the kernel itself shows is in check_test.cc, what criu does in
// tests/vm/scenarios.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/unique_fd.h"
#include "base/units.h"
#include "cli/check/criu_binary.h"
#include "cli/check/obstacles/dump_obstacles.h"
#include "cli/check/obstacles/unix_sockets.h"
#include "cli/text.h"
#include "support/refuse_system_call.h"
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
  // The process has our socket `own`, under this number.
  void open_socket(const std::string& process, int fd, std::uint64_t inode, int own) {
    const std::string name = "socket:[" + std::to_string(inode) + "]";
    open(process, fd, name);
    link(process, "fd/" + name, "/proc/self/fd/" + std::to_string(own));
  }
  // The process maps one file, under this name.
  void map(const std::string& process, const std::string& name, const fs::path& file) {
    write(process, "maps", "7f0000000000-7f0000001000 rw-s 00000000 00:10 1    " + name + "\n");
    link(process, "map_files/7f0000000000-7f0000001000", file);
  }
  // A new file with a text in it.
  fs::path file(const std::string& name) const {
    std::ofstream(path() / name) << "text";
    return path() / name;
  }
  // A new file of this kind and number, which nothing opens; empty where none may be made.
  std::string node(const std::string& name, mode_t kind, unsigned major_number, unsigned minor_number) const {
    const fs::path made = path() / "dev" / name;
    fs::create_directories(made.parent_path());
    fs::remove(made);
    return ::mknod(made.c_str(), kind | 0600, makedev(major_number, minor_number)) == 0 ? made.string() : "";
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

// What `call` gives where these system calls are refused.
template <class Call>
auto where_refused(std::initializer_list<int> numbers, const Call& call,
                   std::initializer_list<test::ArgumentBits> arguments = {}) {
  decltype(call()) got{};
  std::thread([&] {
    for (const int number : numbers)
      EXPECT_TRUE(test::refuse_system_call(static_cast<unsigned>(number), EPERM, arguments));
    got = call();
  }).join();
  return got;
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
  for (const char* other : {"strange", "strange:[1]"}) {
    proc.open("7", 3, other);
    EXPECT_THAT(codes(proc.look({7})), ElementsAre("special-file"));
  }
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

// ---- devices

TEST(Obstacles, DevicesAreToldByTheirNumbers) {
  struct Case {
    mode_t kind;
    unsigned major_number;
    unsigned minor_number;
    std::vector<std::string> codes;
  };
  const std::vector<std::string> device = {"device"};
  const std::vector<Case> cases = {
      {S_IFCHR, 4, 0, device},   {S_IFCHR, 4, 1, {}},        {S_IFCHR, 4, 63, {}},
      {S_IFCHR, 4, 64, device},  {S_IFCHR, 5, 1, {}},        {S_IFCHR, 5, 3, device},
      {S_IFCHR, 127, 0, device}, {S_IFCHR, 128, 0, {}},      {S_IFCHR, 135, 0, {}},
      {S_IFCHR, 137, 0, device}, {S_IFCHR, 188, 0, {}},      {S_IFCHR, 204, 64, {}},
      {S_IFCHR, 10, 235, {}},    {S_IFCHR, 10, 234, device}, {S_IFCHR, 10, 200, {"tun"}},
      {S_IFBLK, 7, 0, device},   {S_IFSOCK, 0, 0, device},   {S_IFIFO, 0, 0, {}},
  };
  for (const Case& one : cases) {
    MadeProc proc;
    proc.add("7");
    const std::string node = proc.node("node", one.kind, one.major_number, one.minor_number);
    if (node.empty()) GTEST_SKIP() << "no device files can be made here";
    proc.open("7", 3, node);
    EXPECT_EQ(codes(proc.look({7})), one.codes) << one.major_number << ":" << one.minor_number;
  }
}

TEST(Obstacles, ATunOfANetworkNamespaceIsTaken) {
  MadeProc proc;
  proc.add("7");
  const std::string node = proc.node("net/tun", S_IFCHR, 10, 200);
  if (node.empty()) GTEST_SKIP() << "no device files can be made here";
  proc.open("7", 3, node);
  proc.set_namespace("7", "net", 99);
  EXPECT_THAT(codes(proc.look({7})), IsEmpty());
}

TEST(Obstacles, AMappedDeviceIsToldByItsNumber) {
  MadeProc proc;
  proc.add("7");
  const std::string node = proc.node("infiniband/one", S_IFCHR, 10, 234);
  if (node.empty()) GTEST_SKIP() << "no device files can be made here";
  proc.map("7", node, node);
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("rdma"));
  proc.map("7", "/dev/one", node);
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("device-map"));
  DumpSurroundings around;
  around.other_plugins = true;
  EXPECT_THAT(codes(proc.look({7}, around)), ElementsAre("device-of-other-plugin"));
  around.plugin_devices = {makedev(10, 234)};
  EXPECT_THAT(codes(proc.look({7}, around)), IsEmpty());
  proc.map("7", "/dev/zero", "/dev/zero");
  EXPECT_THAT(codes(proc.look({7})), IsEmpty());
  proc.map("7", "/dev", "/dev");  // no file that can be mapped
  EXPECT_THAT(codes(proc.look({7})), IsEmpty());
}

// Terminal 136:3 is number 34819 in /proc/PID/stat.
TEST(Obstacles, ATerminalIsTakenWithItsOtherEnd) {
  MadeProc proc;
  proc.add("7");
  const std::string current = proc.node("tty", S_IFCHR, 5, 0);
  const std::string third = proc.node("pts/3", S_IFCHR, 136, 3);
  const std::string fourth = proc.node("pts/4", S_IFCHR, 136, 4);
  const std::string master = proc.node("ptmx", S_IFCHR, 5, 2);
  if (master.empty()) GTEST_SKIP() << "no device files can be made here";
  const auto found = [&](const std::string& session_terminal_group) {
    proc.write("7", "stat", "7 (made) S 1 7 " + session_terminal_group + " 0\n");
    return codes(proc.look({7}));
  };
  proc.open("7", 0, "pipe:[5]");
  proc.open("7", 1, proc.file("file"));
  proc.open("7", 3, current);
  EXPECT_THAT(found("7 0 -1"), IsEmpty());
  EXPECT_THAT(found("7 34819 7"), ElementsAre("controlling-terminal"));
  proc.open("7", 4, third);
  proc.open("7", 5, master);
  proc.write("7", "fdinfo/5", "pos:\t0\ntty-index:\t3\n");
  EXPECT_THAT(found("7 34819 7"), IsEmpty());
  EXPECT_THAT(found("7 34819 9"), ElementsAre("controlling-terminal"));  // in the background
  EXPECT_THAT(found("1 34819 1"), ElementsAre("terminal"));              // of another's session
  proc.write("7", "fdinfo/5", "pos:\t0\n");                              // of which terminal?
  EXPECT_THAT(found("7 34819 7"), ElementsAre("terminal"));
  proc.open("7", 6, fourth);
  EXPECT_THAT(found("7 34819 7"), ElementsAre("terminals"));
}

// ---- files

TEST(Obstacles, LocksAreLookedForInEachFileWhereTheListMayLackSome) {
  MadeProc proc;
  proc.add("7");
  const fs::path file = proc.file("file");
  proc.open("7", 3, file);
  const std::string lock = "1: FLOCK  ADVISORY  WRITE 7 00:30:";
  const auto set_lists = [&](const std::string& all, const std::string& of_descriptor) {
    std::ofstream(proc.path() / "locks") << all;
    proc.write("7", "fdinfo/3", "pos:\t0\n" + of_descriptor);
  };
  const auto facts = file_facts(file);
  ASSERT_TRUE(facts.ok());
  set_lists("no lock\n" + lock + std::to_string(facts->inode + 1) + " 0 EOF\n", "lock:\t" + lock);
  EXPECT_THAT(codes(proc.look({7})), IsEmpty());
  set_lists(lock + std::to_string(facts->inode) + " 0 EOF\n", "lock:\t" + lock);
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("file-lock"));
  set_lists(std::string(4 * kMiB, 'x'), "lock:\t" + lock);  // longer than what is read
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("file-lock"));
  for (const char* process : {"self", "7"}) proc.set_namespace(process, "pid", 99);
  set_lists("", "lock:\t" + lock);
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("file-lock"));
  set_lists("", "");
  EXPECT_THAT(codes(proc.look({7})), IsEmpty());
}

TEST(Obstacles, MapsAreToldByTheirNames) {
  MadeProc proc;
  proc.add("7");
  const fs::path file = proc.file("file");
  const fs::path other = proc.file("other");
  const std::string digits(23, 'a');
  std::vector<std::string> silly;  // as of NFS, but on another file system
  for (const std::string& name : {std::string(".nfs12"), ".nfs" + digits + "z", ".nfs" + digits + "1"}) {
    fs::create_hard_link(file, proc.path() / name);
    silly.push_back(proc.path() / name);
  }
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {file, {}},
      {other, {"path-taken"}},
      {proc.path() / "none", {"link-remap"}},
      {file / "below", {}},  // cannot be looked up
      {silly[0], {}},
      {silly[1], {}},
      {silly[2], {}},
      {"/memfd:one (deleted)", {}},
      {"/anon_hugepage (deleted)", {}},
      {"/secretmem (deleted)", {"secret-memory"}},
      {"/dmabuf:", {"dma-buf-map"}},
      {"/[aio] (deleted)", {}},
      {"anon_inode:[eventfd]", {}},
      {"anon_inode:bpf-map", {"bpf"}},
      {"strange", {}},
  };
  for (const auto& [name, expected] : cases) {
    proc.map("7", name, file);
    EXPECT_EQ(codes(proc.look({7})), expected) << name;
  }
  EXPECT_FALSE(refused_anon_inode("socket:[1]", {}));
  proc.map("7", silly[2], file);
  const auto look = [&] { return codes(proc.look({7})); };
  EXPECT_THAT(where_refused({SYS_statfs}, look), IsEmpty());
}

TEST(Obstacles, SharedMemoryIsNoDeletedFile) {
  MadeProc proc;
  proc.add("7");
  const UniqueFd memory(::memfd_create("one", MFD_CLOEXEC));
  ASSERT_EQ(::posix_fallocate(memory.get(), 0, static_cast<off_t>(2 * kMiB)), 0);
  const std::string file = "/proc/self/fd/" + std::to_string(memory.get());
  proc.open("7", 3, file);
  EXPECT_THAT(codes(proc.look({7})), IsEmpty());
  proc.open("7", 3, "pipe:[5]");
  proc.map("7", "/memfd:one (deleted)", file);  // its name tells, too
  const auto look = [&] { return codes(proc.look({7})); };
  EXPECT_THAT(look(), IsEmpty());
  EXPECT_THAT(where_refused({SYS_memfd_create}, look), IsEmpty());
}

TEST(Obstacles, AFileOfAMountThatTheTreeLacksIsTold) {
  MadeProc proc;
  proc.add("7");
  const fs::path file = proc.file("file");
  proc.open("7", 3, file);
  const auto facts = file_facts(file);
  const auto root = file_facts("/");
  ASSERT_TRUE(facts.ok() && root.ok());
  if (!facts->mount || !root->mount) GTEST_SKIP() << "this kernel does not tell mounts";
  proc.write("7", "mountinfo", std::to_string(*facts->mount) + " 1 0:1 / / rw");  // no end of the line
  EXPECT_THAT(codes(proc.look({7})), IsEmpty());
  proc.write("7", "mountinfo", std::to_string(*facts->mount + *root->mount + 1) + " 1 0:1 / / rw\n");
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("foreign-mount"));
  fs::create_symlink("/", proc.path() / "7/root");  // a root whose mount is not listed: in a chroot
  EXPECT_THAT(codes(proc.look({7})), IsEmpty());
  proc.add("8");
  proc.set_namespace("8", "mnt", 99);
  EXPECT_THAT(codes(proc.look({7, 8})), IsEmpty());
}

// Numbers of files are a file system's own: both of these are the first of theirs.
TEST(Obstacles, AFileIsLookedUpInItsMountNamespace) {
  const auto file = file_facts("/proc");
  const auto other = file_facts("/sys");
  if (!file || !other || file->inode != other->inode || file->device == other->device)
    GTEST_SKIP() << "no such files here";
  MadeProc proc;
  proc.add("7");
  proc.add("8");
  proc.set_namespace("8", "mnt", 99);
  proc.open("8", 3, "/proc");
  fs::create_directory(proc.path() / "8/root");
  EXPECT_THAT(codes(proc.look({7, 8})), ElementsAre("link-remap"));
  fs::create_symlink("/sys", proc.path() / "8/root/proc");
  EXPECT_THAT(codes(proc.look({7, 8})), ElementsAre("path-taken"));
  fs::remove(proc.path() / "8/root/proc");
  fs::create_symlink("/proc", proc.path() / "8/root/proc");
  EXPECT_THAT(codes(proc.look({7, 8})), IsEmpty());
}

TEST(DumpTree, ADescriptorThatIsGoneIsLeftOut) {
  MadeProc proc;
  proc.add("7");
  const fs::path file = proc.file("file");
  proc.open("7", 3, proc.path() / "none");
  proc.open("7", 4, file / "below");
  proc.open("7", 5, file);
  const auto tree = read_dump_tree({7}, proc.path());
  ASSERT_TRUE(tree.ok());
  ASSERT_EQ(tree->tasks[0].descriptors.size(), 2U);
  EXPECT_EQ(tree->tasks[0].descriptors[0].fd, 4);
  EXPECT_FALSE(tree->tasks[0].descriptors[0].file);
  EXPECT_TRUE(tree->tasks[0].descriptors[1].file);
  proc.open("7", 6, "/dev/null/below");  // perhaps a device
  const auto refused = read_dump_tree({7}, proc.path());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().err, ENOTDIR);
}

TEST(DumpTree, WhatCannotBeReadIsEmpty) {
  MadeProc proc;
  proc.add("7");
  proc.write("7", "status", "State:\t\nNSpid:\t7\t1\t \nNSsid:\t\n");
  proc.write("7", "stat", "7 (made) S 1");
  proc.write("7", "limits", "Max open files            -1   4096   files\nMax address space         \n");
  const auto read = [&] { return read_dump_tree({7}, proc.path()).value().tasks.at(0); };
  const TaskFacts task = read();
  EXPECT_EQ(task.state, 0);
  EXPECT_EQ(task.inner_pid, 1);
  EXPECT_FALSE(task.inner_session);
  EXPECT_EQ(task.terminal, 0U);
  EXPECT_FALSE(task.descriptor_limit);
  EXPECT_FALSE(task.address_space_limit);
  proc.write("7", "stat", "7 made");
  EXPECT_EQ(read().session, 0);
}

TEST(DumpTree, ALinkIsAFileOfItsOwn) {
  MadeProc proc;
  const fs::path link = proc.path() / "link";
  fs::create_symlink(proc.file("file"), link);
  EXPECT_TRUE(S_ISREG(file_facts(link).value().mode));
  EXPECT_TRUE(S_ISLNK(file_facts(link, false).value().mode));
}

// ---- sockets: our own, in tables that are made up

TEST(Obstacles, ATcpSocketIsToldByItsState) {
  MadeProc proc;
  proc.add("7");
  const UniqueFd tcp(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(tcp);
  proc.open_socket("7", 3, 5, tcp.get());
  proc.open("7", 4, "socket:[6]");  // whose kind is not told
  fs::create_directories(proc.path() / "7/net");
  struct Case {
    const char* state;
    const char* queues;
    std::vector<std::string> codes;
  };
  const std::vector<Case> cases = {
      {"0A", "00000000:00000001", {"tcp-in-flight"}},
      {"0A", "00000000:00000000", {}},
      {"0A", "none", {}},
      {"01", "00000000:00000000", {"tcp-established"}},
      {"03", "00000000:00000000", {}},
      {"06", "00000000:00000000", {}},
      {"07", "00000000:00000000", {}},
  };
  for (const Case& one : cases) {
    proc.write("7", "net/tcp",
               "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
               "inode\n   0: 0100007F:1F90 00000000:0000 " +
                   std::string(one.state) + " " + one.queues +
                   " 00:00000000 00000000     0        0 5 1 0\n");
    EXPECT_EQ(codes(proc.look({7})), one.codes) << one.state << " " << one.queues;
  }
  proc.write("7", "net/tcp", "");
  EXPECT_THAT(codes(proc.look({7})), IsEmpty());
  proc.write("7", "net/tcp", std::string(8 * kMiB, ' '));  // longer than what is read
  EXPECT_THAT(codes(proc.look({7})), ElementsAre("tcp-unknown"));
}

TEST(Obstacles, ANetlinkSocketIsToldWhereMessagesWait) {
  MadeProc proc;
  proc.add("7");
  const UniqueFd netlink(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(netlink);
  proc.open_socket("7", 3, 5, netlink.get());
  fs::create_directories(proc.path() / "7/net");
  const auto found = [&](const std::string& waiting, const std::string& inode) {
    proc.write("7", "net/netlink",
               "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n"
               "0000000000000000 0   1          00000000 " +
                   waiting + " 0        0     2        0        " + inode + "\n");
    return codes(proc.look({7}));
  };
  EXPECT_THAT(found("100", "5"), ElementsAre("netlink-data"));
  EXPECT_THAT(found("0", "5"), IsEmpty());
  EXPECT_THAT(found("100", "6"), IsEmpty());
}

// From Linux 6.16 on.
TEST(Obstacles, ASocketThatRefusesAnOptionIsAMatterOfTheVersion) {
  MadeProc proc;
  proc.add("7");
  const UniqueFd udp(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  int value = 0;
  socklen_t length = sizeof value;
  const bool refuses = ::getsockopt(udp.get(), SOL_SOCKET, SO_PASSCRED, &value, &length) != 0;
  proc.open_socket("7", 3, 5, udp.get());
  EXPECT_EQ(codes(proc.look({7}, with_criu(4, 1))),
            refuses ? std::vector<std::string>{"criu-kernel"} : std::vector<std::string>());
  EXPECT_THAT(codes(proc.look({7}, with_criu(4, 2))), IsEmpty());
  for (const int number : {SYS_socket, SYS_getsockopt}) {  // where that cannot be tried
    const auto look = [&] { return codes(proc.look({7}, with_criu(4, 1))); };
    EXPECT_THAT(where_refused({number}, look), IsEmpty()) << number;
  }
}

// The kernel itself tells who is connected with whom.
class UnixObstacles : public ::testing::Test {
 protected:
  UnixObstacles() { proc_.add("7"); }
  void SetUp() override {
    if (!unix_sockets("", false)) GTEST_SKIP() << "this kernel does not list unix sockets";
  }

  void process_has(const UniqueFd& fd) {
    struct stat status {};
    EXPECT_EQ(::fstat(fd.get(), &status), 0);
    proc_.open_socket("7", next_++, status.st_ino, fd.get());
  }
  std::vector<std::string> found(const DumpSurroundings& around = {}) const {
    return codes(proc_.look({7}, around));
  }
  sockaddr_un address() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = proc_.path() / "socket";
    EXPECT_LT(path.size(), sizeof address.sun_path);
    (void)path.copy(address.sun_path, sizeof address.sun_path - 1);
    return address;
  }
  static UniqueFd made(int type) { return UniqueFd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0)); }
  static std::array<UniqueFd, 2> pair(int type) {
    std::array<int, 2> ends{-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends.data()), 0);
    return {UniqueFd(ends[0]), UniqueFd(ends[1])};
  }
  UniqueFd named(int type) const {
    UniqueFd fd = made(type);
    const sockaddr_un at = address();
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
    if (type != SOCK_DGRAM) {
      EXPECT_EQ(::listen(fd.get(), 4), 0);
    }
    return fd;
  }
  // In a network namespace of its own; invalid where none can be made.
  UniqueFd named_elsewhere(int type) const {
    UniqueFd fd;
    std::thread([&] {
      if (::unshare(CLONE_NEWNET) == 0) fd = named(type);
    }).join();
    return fd;
  }
  void connect(const UniqueFd& fd) const {
    const sockaddr_un at = address();
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
  }

  MadeProc proc_;
  int next_ = 3;
};

TEST_F(UnixObstacles, AConnectionThatIsNotAcceptedMayNotBeUsedYet) {
  const UniqueFd listener = named(SOCK_STREAM);
  const UniqueFd client = made(SOCK_STREAM);
  process_has(client);
  EXPECT_THAT(found(), IsEmpty());
  connect(client);
  EXPECT_THAT(found(), IsEmpty());
  ASSERT_EQ(::send(client.get(), "x", 1, MSG_NOSIGNAL), 1);
  EXPECT_THAT(found(), ElementsAre("unix-in-flight"));
  EXPECT_THAT(found(with_criu(3, 17)), ElementsAre("unix-in-flight-lost"));
}

TEST_F(UnixObstacles, AConnectionThatIsNotAcceptedMayNotBeClosed) {
  const UniqueFd listener = named(SOCK_STREAM);
  process_has(listener);
  UniqueFd client = made(SOCK_STREAM);
  connect(client);
  EXPECT_THAT(found(), IsEmpty());
  client = UniqueFd();
  EXPECT_THAT(found(), ElementsAre("unix-in-flight"));
}

TEST_F(UnixObstacles, APairIsWholeOrNameless) {
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    std::array<UniqueFd, 2> ends = pair(type);
    process_has(ends[0]);
    EXPECT_THAT(found(), ElementsAre("unix-nameless"));
    process_has(ends[1]);
    EXPECT_THAT(found(), IsEmpty());
    next_ -= 2;
    proc_.open("7", next_ + 1, "pipe:[1]");
    ends[1] = UniqueFd();
    EXPECT_THAT(found(), IsEmpty()) << "what is closed is no end";
  }
}

TEST_F(UnixObstacles, AnEndThatTalksToAnotherIsNotReached) {
  const UniqueFd third = named(SOCK_DGRAM);
  const std::array<UniqueFd, 2> ends = pair(SOCK_DGRAM);
  process_has(ends[0]);
  connect(ends[1]);
  EXPECT_THAT(found(), ElementsAre("unix-unreachable"));
}

TEST_F(UnixObstacles, ANamedOneOutsideNeedsAnOption) {
  UniqueFd other = named(SOCK_DGRAM);
  const UniqueFd client = made(SOCK_DGRAM);
  connect(client);
  process_has(client);
  EXPECT_THAT(found(), ElementsAre("unix-external"));
  other = UniqueFd();
  EXPECT_THAT(found(), IsEmpty());
}

TEST_F(UnixObstacles, AnotherNetworkNamespaceIsNotReached) {
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    const UniqueFd other = named_elsewhere(type);
    if (!other) GTEST_SKIP() << "no network namespace can be made here";
    const UniqueFd client = made(type);
    connect(client);
    process_has(client);
    EXPECT_THAT(found(), ElementsAre("unix-unreachable")) << type;
    --next_;
    fs::remove(proc_.path() / "socket");
  }
}

TEST_F(UnixObstacles, OneThatTheKernelDoesNotListIsOfAnotherNamespaceOrClosed) {
  const UniqueFd own = made(SOCK_STREAM);
  proc_.open_socket("7", 3, 0xFFFFFFF0, own.get());
  EXPECT_THAT(found(), ElementsAre("unix-unreachable"));
  DumpSurroundings around;
  around.proc = proc_.path();
  around.self = proc_.path() / "self";
  const auto tree = read_dump_tree({7}, around.proc);
  ASSERT_TRUE(tree.ok());
  proc_.open_socket("7", 3, 0xFFFFFFF1, own.get());
  Obstacles reused;
  find_socket_obstacles(*tree, around, reused);
  EXPECT_THAT(codes(reused), IsEmpty());
}

TEST_F(UnixObstacles, WhereTheNamespaceCannotBeEnteredNothingIsKnown) {
  const UniqueFd own = made(SOCK_STREAM);
  process_has(own);
  proc_.set_namespace("7", "net", 99);
  EXPECT_THAT(found(), ElementsAre("unix-unknown"));  // it is gone
  std::ofstream(proc_.path() / "7/ns/net:[99]") << "no namespace";
  EXPECT_THAT(found(), ElementsAre("unix-unknown"));
}

TEST_F(UnixObstacles, WhereTheKernelIsNotAskedNothingIsKnown) {
  const UniqueFd own = made(SOCK_STREAM);
  process_has(own);
  const auto look = [&] { return found(); };
  EXPECT_THAT(look(), IsEmpty());
  for (const int number : {SYS_socket, SYS_sendto, SYS_recvfrom})
    EXPECT_THAT(where_refused({number}, look), ElementsAre("unix-unknown")) << number;
  // In a namespace that is entered.
  proc_.set_namespace("7", "net", 99);
  fs::create_symlink("/proc/self/ns/net", proc_.path() / "7/ns/net:[99]");
  EXPECT_THAT(where_refused({SYS_socket}, look), ElementsAre("unix-unknown"));
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
  EXPECT_EQ(read(elf({"/Opt_1/a-b+c.2/lib/criu"})).plugin_directory, "/Opt_1/a-b+c.2/lib/criu");
}

TEST_F(CriuBinaryTest, TellsNothingThatIsNotSure) {
  EXPECT_FALSE(read(elf({"/usr/lib/criu/", "/usr/lib64/criu/"})).plugin_directory);  // which?
  EXPECT_FALSE(read("#!/bin/sh\nexec /usr/lib64/criu/criu.real\n").plugin_directory);
  EXPECT_FALSE(read(elf({"/usr/lib64/criu/scripts", "/usr/lib64/criuser"})).plugin_directory);
  EXPECT_FALSE(read("\177ELF/usr/lib/criu/").plugin_directory);  // no end
  EXPECT_FALSE(read(std::string("\177ELF") + '\0' + "/usr/lib/criu").plugin_directory);
  EXPECT_FALSE(read(elf({"usr/lib/criu", "/usr/share/criu"})).plugin_directory);
  for (const char before : {'(', '~', '@', '[', ':', ' '})
    EXPECT_FALSE(read(elf({std::string(1, before) + "/usr/lib/criu"})).plugin_directory) << before;
  EXPECT_FALSE(read(elf({"/lib/" + std::string(300, 'a') + "/criu"})).plugin_directory);
  EXPECT_FALSE(read("").plugin_directory);
  EXPECT_FALSE(read_criu_binary(directory_.path()).plugin_directory);
  EXPECT_FALSE(read_criu_binary(fs::path(directory_.path()) / "none").plugin_directory);
}

TEST_F(CriuBinaryTest, TellsItsVersion) {
  EXPECT_EQ(read(elf({"Version: %s", "4.1.1", "127.0.0.1", "./fd/%d", "1.", ".5"})).version, "4.1.1");
  EXPECT_EQ(read(elf({"4.0", "4.0"})).version, "4.0");
  EXPECT_EQ(read(elf({"4.0", "1.2.11"})).version, "");  // which?
  EXPECT_EQ(read(elf({"4.0rc1", "v4.1", "4..1", "4.1."})).version, "");
  EXPECT_EQ(read(elf({std::string(20, '1') + ".5", "4.1." + std::string(20, '1')})).version, "");
}

TEST_F(CriuBinaryTest, AFileThatIsTooLargeIsNotRead) {
  EXPECT_EQ(read(elf({"4.1.1"})).version, "4.1.1");
  const fs::path path = fs::path(directory_.path()) / "criu";
  fs::resize_file(path, 64 * kMiB);
  EXPECT_EQ(read_criu_binary(path).version, "4.1.1");
  fs::resize_file(path, 64 * kMiB + 1);
  EXPECT_EQ(read_criu_binary(path).version, "");
  fs::resize_file(path, 32 * kMiB);
  const auto version = [&] { return read_criu_binary(path).version; };
  EXPECT_EQ(where_refused({SYS_mmap}, version, {{.argument = 1, .bits = 32 * kMiB}}), "");
}

TEST_F(CriuBinaryTest, TellsWhetherItDumpsBpfMaps) {
  EXPECT_TRUE(read(elf({"libbpf.so.1"})).has_libbpf);
  EXPECT_FALSE(read(elf({"libbsd.so.0"})).has_libbpf);
}

TEST_F(CriuBinaryTest, TellsWhetherItChoosesAmongPluginsOfOneName) {
  EXPECT_TRUE(read(elf({"CR_PLUGIN_DESC", "CR_PLUGIN_DESC_SIZE"})).chooses_plugins);
  EXPECT_FALSE(read(elf({"CR_PLUGIN_DESC"})).chooses_plugins);
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
