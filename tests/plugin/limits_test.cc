// SPDX-License-Identifier: MIT
// Limits and signals that end a program: none of them ends CRIU in one of our hooks without a line in the
// log, and none leaves queues stopped. The table is docs/user/troubleshooting.md's.
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "plugin_test.h"
#ifdef SEAM_LIBRARY
#include "seam_plan.h"
#endif

namespace sluice::plugin_test {
namespace {

constexpr std::uint64_t kSlowBytesPerSecond = 16 * kMiB;  // no dump ends before its signal comes
constexpr rlim_t kLowFileSize = 16 << 10;                 // more than the log, less than the image of the KFD

class LimitsTest : public PluginTest {
 protected:
  // For the hosts: whoever runs this may have some of them ignored.
  void SetUp() override {
    PluginTest::SetUp();
    for (int number = 1; number <= SIGRTMAX; ++number) {
      if (number != SIGPIPE) (void)::signal(number, SIG_DFL);
    }
  }

  // A host that waits in DUMP_EXT_FILE for contents: it has said how far they are.
  Program start_waiting_dump(const Strings& more = {}) {
    for (const unsigned gpu : {0U, 1U}) scene_.control().set_engine_rate(gpu, kSlowBytesPerSecond);
    Program host = scene_.start_host(version(), "dump", more);
    while (!scene_.has_logged("dump: ") && !host.has_ended()) (void)::sched_yield();
    return host;
  }
  void full_speed() {
    for (const unsigned gpu : {0U, 1U}) scene_.control().set_engine_rate(gpu, 0);
  }

  // The soft one, of a stopped host: what CRIU does to its limits it has done at its start.
  static void limit(pid_t pid, __rlimit_resource resource, rlim_t most) {
    rlimit now{};
    ASSERT_EQ(::prlimit(pid, resource, nullptr, &now), 0);
    const rlimit lower{most, now.rlim_max};
    ASSERT_EQ(::prlimit(pid, resource, &lower, nullptr), 0);
  }

  // A line of /proc/PID/status, in bytes.
  static rlim_t memory_of(pid_t pid, const std::string& line) {
    const std::string status = read_file("/proc/" + std::to_string(pid) + "/status");
    return std::strtoull(&status[status.find(line + ":") + line.size() + 1], nullptr, 10) * 1024;
  }
  // The next descriptor that it gets; some of CRIU's have high numbers.
  static rlim_t next_descriptor_of(pid_t pid) {
    std::set<rlim_t> taken;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd"))
      taken.insert(std::strtoull(entry.path().filename().c_str(), nullptr, 10));
    rlim_t next = 0;
    while (taken.contains(next)) ++next;
    return next;
  }

  // A host that is stopped before the plugin has done much.
  Program start_held(const std::string& command, const std::string& step) {
    Program host = scene_.start_host(version(), command, {"--hold", step});
    EXPECT_EQ(host.hear_control(), step) << scene_.log();
    return host;
  }
  // The one that a host restores.
  static pid_t task_of(const Program& host) {
    const std::string self = std::to_string(host.pid());
    return std::atoi(read_file("/proc/" + self + "/task/" + self + "/children").c_str());
  }
  void expect_failure_saying(Program& host, const std::string& remedy) {
    host.release_control();
    EXPECT_EQ(host.wait(), 1);
    const std::string log = scene_.log();
    EXPECT_NE(log.find(remedy), std::string::npos) << log;
    EXPECT_EQ(log.find("another checkpoint"), std::string::npos) << log;
  }

  // The lines of the last host's log that are errors of the plugin.
  std::string errors() {
    std::istringstream log(scene_.log());
    std::string found;
    for (std::string line; std::getline(log, line);) {
      if (line.find("amdgpu_plugin: Error (DUMP_EXT_FILE): ") != std::string::npos) found += line + "\n";
    }
    return found;
  }

  // Whether it has files of that name open. What a lane writes is closed when it is complete.
  static bool has_open(const Program& host, const std::string& name) {
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(host.pid()) + "/fd")) {
      std::error_code gone;
      if (std::filesystem::read_symlink(entry.path(), gone).string().find(name) != std::string::npos)
        return true;
    }
    return false;
  }

  void expect_undone() {
    full_speed();
    EXPECT_TRUE(images("amdgpu-").empty());
    expect_running();
  }
};

// Contents, by a lane; of the hook itself nothing is written any more then.
TEST_P(LimitsTest, AFileSizeLimitIsAnErrorOfContents) {
  ASSERT_NO_FATAL_FAILURE(start());
  Program host = start_waiting_dump();
  ASSERT_NO_FATAL_FAILURE(limit(host.pid(), RLIMIT_FSIZE, kLowFileSize));
  full_speed();
  EXPECT_EQ(host.wait(), 1);
  const std::string said = errors();
  EXPECT_NE(said.find("; raise the limit of file sizes (ulimit -f)"), std::string::npos) << said;
  ASSERT_NO_FATAL_FAILURE(expect_undone());
  ASSERT_NO_FATAL_FAILURE(dump());
  restore_and_check();
}

// And what the main thread writes, which the signal would come to.
TEST_P(LimitsTest, AFileSizeLimitIsAnErrorOfTheHooksOwnImages) {
  if (hooks() < 12) GTEST_SKIP() << "contents flow in the hook that writes the images";
  ASSERT_NO_FATAL_FAILURE(start());
  Program host = scene_.start_host(version(), "dump", {"--hold", "checkpoint"});
  ASSERT_EQ(host.hear_control(), "checkpoint") << scene_.log();
  while (images("amdgpu-pages-").size() < 2 || has_open(host, "amdgpu-pages-")) (void)::sched_yield();
  ASSERT_NO_FATAL_FAILURE(limit(host.pid(), RLIMIT_FSIZE, kLowFileSize));
  host.release_control();
  EXPECT_EQ(host.wait(), 1);
  const std::string said = errors();
  // Metadata, not contents: which of its files comes first depends on how large they are.
  EXPECT_NE(said.find(".img.tmp: File too large; raise the limit of file sizes (ulimit -f)"),
            std::string::npos)
      << said;
  expect_undone();
}

// CRIU itself writes between our hooks, while the queues are stopped.
TEST_P(LimitsTest, AFileSizeLimitThatTheHostMeetsLeavesNoQueueStopped) {
  ASSERT_NO_FATAL_FAILURE(start());
  Program host = start_held("dump", "dump_ext_file");
  ASSERT_NO_FATAL_FAILURE(limit(host.pid(), RLIMIT_FSIZE, kLowFileSize));
  host.release_control();
  EXPECT_EQ(host.wait(), 1);
  expect_undone();
}

// What is the same in all hosts.
class NewestLimitsTest : public LimitsTest {};

// Whoever sends it and why: a manager of jobs, a timer, a limit of CPU time.
TEST_P(NewestLimitsTest, ASignalEndsTheDumpInOrderAndThenTheHost) {
  ASSERT_NO_FATAL_FAILURE(start());
  for (const int number : {SIGXCPU, SIGUSR1, SIGPROF, SIGABRT, SIGRTMIN}) {
    SCOPED_TRACE(number);
    Program host = start_waiting_dump();
    ASSERT_EQ(::kill(host.pid(), number), 0);
    EXPECT_EQ(host.wait(), 128 + number);
    const char* const name = sigabbrev_np(number);
    const std::string words =
        name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(number);
    const std::string log = scene_.log();
    EXPECT_NE(log.find(words), std::string::npos) << log;
    EXPECT_NE(log.find("[SL-D19]"), std::string::npos) << log;
    EXPECT_NE(log.find("Dumping FAILED."), std::string::npos) << "the host came to its end\n" << log;
    EXPECT_EQ(log.find("ulimit -t") != std::string::npos, number == SIGXCPU) << log;
    ASSERT_NO_FATAL_FAILURE(expect_undone());
  }
}

constexpr std::pair<__rlimit_resource, const char*> kOfMemory[] = {
    {RLIMIT_AS, "; raise the limit of address space (ulimit -v)"},
    {RLIMIT_DATA, "; raise the limit of data (ulimit -d)"}};
constexpr rlim_t kMoreMemory = 512 << 10;  // for small things, not for a thread
constexpr rlim_t kMoreDescriptors = 8;

TEST_P(NewestLimitsTest, ALimitOfMemoryIsNamedByADumpThatFails) {
  ASSERT_NO_FATAL_FAILURE(start());
  for (const auto& [resource, remedy] : kOfMemory) {
    SCOPED_TRACE(remedy);
    Program host = start_held("dump", "seized");
    const rlim_t has = memory_of(host.pid(), resource == RLIMIT_AS ? "VmSize" : "VmData");
    ASSERT_NO_FATAL_FAILURE(limit(host.pid(), resource, has + kMoreMemory));
    expect_failure_saying(host, remedy);
    ASSERT_NO_FATAL_FAILURE(expect_undone());
  }
}

TEST_P(NewestLimitsTest, ALimitOfMemoryIsNamedByARestoreThatFails) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  scene_.variables["SLUICE_PARALLEL"] = "off";  // the task has the lanes
  for (const auto& [resource, remedy] : kOfMemory) {
    SCOPED_TRACE(remedy);
    Program host = start_held("restore", "premapped");
    const pid_t task = task_of(host);
    const rlim_t has = memory_of(task, resource == RLIMIT_AS ? "VmSize" : "VmData");
    ASSERT_NO_FATAL_FAILURE(limit(task, resource, has + kMoreMemory));
    expect_failure_saying(host, remedy);
    ASSERT_NO_FATAL_FAILURE(expect_not_resumed());
  }
}

TEST_P(NewestLimitsTest, ALimitOfDescriptorsIsNamedByADumpThatFails) {
  ASSERT_NO_FATAL_FAILURE(start());
  Program host = start_held("dump", "seized");
  const rlim_t most = next_descriptor_of(host.pid()) + kMoreDescriptors;
  ASSERT_NO_FATAL_FAILURE(limit(host.pid(), RLIMIT_NOFILE, most));
  expect_failure_saying(host, "RLIMIT_NOFILE is " + std::to_string(most));
  expect_undone();
}

TEST_P(NewestLimitsTest, ALimitOfDescriptorsIsNamedByARestoreThatFails) {
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  Program host = start_held("restore", "premapped");
  const pid_t task = task_of(host);
  const rlim_t most = next_descriptor_of(task) + kMoreDescriptors;
  ASSERT_NO_FATAL_FAILURE(limit(task, RLIMIT_NOFILE, most));
  expect_failure_saying(host, "RLIMIT_NOFILE is " + std::to_string(most));
  expect_not_resumed();
}

// Threads have stacks of their own size.
TEST_P(NewestLimitsTest, ALimitOfStacksDoesNotMatter) {
  scene_.run_by = {"/usr/bin/prlimit", "--stack=65536"};
  if (!std::filesystem::exists(scene_.run_by.front())) GTEST_SKIP() << "there is no prlimit";
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_NO_FATAL_FAILURE(dump());
  restore_and_check();
}

#ifdef SEAM_LIBRARY
// Root is limited by its cgroup only, which a test may not have.
TEST_P(NewestLimitsTest, ALimitOfProcessesIsNamedByADumpThatFails) {
  SeamPlan plan(scene_);
  ASSERT_NO_FATAL_FAILURE(start());
  ASSERT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
  std::size_t places = 0;
  std::vector<Failure> all = plan->failures(seam::kError, Turns::FirstAndMiddle, &places);
  std::erase_if(all, [](const Failure& failure) { return failure.call != "pthread_create"; });
  unsigned failed = 0;
  for (const Failure& failure : all) {
    SCOPED_TRACE(failure.name());
    (void)scene_.log();
    plan->arm(failure);
    const int status = scene_.dump(version(), {"--leave-running"});
    const std::string log = scene_.log();
    plan->disarm();
    if (status != 0) {
      ++failed;
      EXPECT_NE(log.find("; raise the limit of processes (ulimit -u, or pids.max of the cgroup)"),
                std::string::npos)
          << log;
    }
    ASSERT_NO_FATAL_FAILURE(expect_running());
  }
  EXPECT_GT(failed, 0U);
}
#endif

INSTANTIATE_TEST_SUITE_P(Newest, NewestLimitsTest, ::testing::Values(kVersions[3]), name_of_version);
INSTANTIATE_TEST_SUITE_P(Hosts, LimitsTest, ::testing::ValuesIn(kVersionsOfLongSuites), name_of_version);

}  // namespace
}  // namespace sluice::plugin_test
