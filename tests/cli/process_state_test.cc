// SPDX-License-Identifier: MIT
// What keeps a process from running, read from a made-up /proc and made-up cgroup file systems.
#include "cli/process_state.h"

#include "cli/check/check.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/unique_fd.h"
#include "support/temp_dir.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

class ProcessStateTest : public ::testing::Test {
 protected:
  ProcessStateTest() {
    task(10, "S (sleeping)");
    write("proc/10/cgroup", "0::/\n");
    write("proc/10/maps", "00400000-00500000 r-xp 00000000 08:01 42 /usr/bin/python3\n");
    write("proc/10/syscall", "0 0x0 0x7ffc 0x100 0x0 0x0 0x0 0x7ffd00001000 0x401234\n");
  }

  void write(const std::string& name, const std::string& text) {
    const fs::path path = fs::path(dir_.path()) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  void task(int tid, const std::string& state) {
    write("proc/10/task/" + std::to_string(tid) + "/status",
          "Name:\tpython3\nUmask:\t0022\nState:\t" + state + "\nTgid:\t10\nPPid:\t1\nTracerPid:\t0\n");
  }

  ProcessState read() const { return read_process_state(10, dir_.path() + "/proc", dir_.path() + "/cgroup"); }

  test::TempDir dir_;
};

TEST_F(ProcessStateTest, AProcessThatRunsHasNothingToTell) {
  const ProcessState state = read();
  EXPECT_EQ(state.threads, 1U);
  EXPECT_EQ(state.stopped, 0U);
  EXPECT_FALSE(state.frozen.has_value());
  EXPECT_EQ(state.parasite, Parasite::None);
}

TEST_F(ProcessStateTest, StoppedThreadsAreCountedTracedOnesAreNot) {
  task(11, "T (stopped)");
  task(12, "T (stopped)");
  task(13, "t (tracing stop)");
  EXPECT_EQ(read().threads, 4U);
  EXPECT_EQ(read().stopped, 2U);
}

TEST_F(ProcessStateTest, AFrozenCgroupIsNamedWhereverAboveTheProcessItIs) {
  write("proc/10/cgroup", "0::/user.slice/job/inner\n");
  write("cgroup/user.slice/job/inner/cgroup.freeze", "0\n");
  write("cgroup/user.slice/job/cgroup.freeze", "0\n");
  write("cgroup/user.slice/cgroup.freeze", "0\n");
  EXPECT_FALSE(read().frozen.has_value());
  write("cgroup/user.slice/job/cgroup.freeze", "1\n");
  ASSERT_TRUE(read().frozen.has_value());
  EXPECT_EQ(read().frozen->file, dir_.path() + "/cgroup/user.slice/job/cgroup.freeze");
  EXPECT_EQ(read().frozen->thaw, "0");
}

TEST_F(ProcessStateTest, AVersionOneFreezerIsFoundAlongsideVersionTwo) {
  write("proc/10/cgroup", "9:memory:/job\n4:freezer:/job/inner\n0::/\n");
  write("cgroup/freezer/job/inner/freezer.self_freezing", "0\n");
  write("cgroup/freezer/job/freezer.self_freezing", "1\n");
  ASSERT_TRUE(read().frozen.has_value());
  EXPECT_EQ(read().frozen->file, dir_.path() + "/cgroup/freezer/job/freezer.state");
  EXPECT_EQ(read().frozen->thaw, "THAWED");

  write("cgroup/freezer/job/freezer.self_freezing", "0\n");
  write("proc/10/cgroup", "4:freezer:/\n0::/job\n");
  write("cgroup/unified/job/cgroup.freeze", "1\n");
  ASSERT_TRUE(read().frozen.has_value());
  EXPECT_EQ(read().frozen->file, dir_.path() + "/cgroup/unified/job/cgroup.freeze");
}

TEST_F(ProcessStateTest, ACgroupFileThatIsNoneTellsNothing) {
  for (const char* text : {"", "nonsense", "0:", "0::", "0::relative\n", "::\n"}) {
    write("proc/10/cgroup", text);
    EXPECT_FALSE(read().frozen.has_value()) << text;
  }
}

TEST_F(ProcessStateTest, CriusCodeIsMappedOrRunning) {
  write("proc/10/maps",
        "00400000-00500000 r-xp 00000000 08:01 42 /usr/bin/python3\n"
        "7f0000000000-7f0000010000 rwxs 00000000 00:01 77 /memfd:CRIUMFD (deleted)\n");
  EXPECT_EQ(read().parasite, Parasite::Mapped);
  write("proc/10/syscall", "45 0x3 0x7f000000f000 0x10 0x100 0x0 0x0 0x7f000000e000 0x7f0000000123\n");
  EXPECT_EQ(read().parasite, Parasite::Running);
  for (const char* elsewhere : {"running\n", "45 0x3 nowhere\n", "0 0x0 0x7ffd00001000 0x401234\n",
                                "0 0x0 0x7ffd00001000 0x7f0000010000\n"}) {
    write("proc/10/syscall", elsewhere);
    EXPECT_EQ(read().parasite, Parasite::Mapped) << elsewhere;
  }
}

// A thread may end while it is looked at.
TEST_F(ProcessStateTest, AThreadThatHasEndedIsNotCounted) {
  fs::create_directories(fs::path(dir_.path()) / "proc/10/task/11");
  EXPECT_EQ(read().threads, 1U);
}

TEST_F(ProcessStateTest, OfNoProcessNothingIsTold) {
  const ProcessState state = read_process_state(11, dir_.path() + "/proc", dir_.path() + "/cgroup");
  EXPECT_EQ(state.threads, 0U);
  EXPECT_FALSE(state.frozen.has_value());
  EXPECT_EQ(state.parasite, Parasite::None);
}

// Process ids may be used again while a tree is walked.
TEST_F(ProcessStateTest, AProcessThatComesAgainIsWalkedOnce) {
  const std::string proc = dir_.path() + "/proc";
  write("proc/10/task/10/children", "11 12 ");
  write("proc/11/task/11/children", "10 12 ");
  write("proc/12/task/12/children", "11 13 ");
  EXPECT_EQ(tree_of(10, proc), (std::vector<pid_t>{10, 11, 12, 13}));
}

// The kernel's own words, not made-up ones.
TEST(RealProcessState, AMapOfCriusMemoryFileIsSeen) {
  const UniqueFd fd(::memfd_create("CRIUMFD", MFD_CLOEXEC));
  const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(read_process_state(::getpid()).parasite, Parasite::None);
  void* map = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(map, MAP_FAILED);
  EXPECT_EQ(read_process_state(::getpid()).parasite, Parasite::Mapped);
  EXPECT_GE(read_process_state(::getpid()).threads, 1U);
  ::munmap(map, bytes);
}

}  // namespace
}  // namespace sluice::cli
