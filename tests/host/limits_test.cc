// SPDX-License-Identifier: MIT
// Limits and signals that end a program: none of them ends CRIU in one of our hooks without a line in the
// log, and none leaves queues stopped. The table is docs/troubleshooting.md's.
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "plugin_test.h"

namespace sluice::host_test {
namespace {

constexpr std::uint64_t kSlowBytesPerSecond = 16 * kMiB;  // no dump ends before its signal comes
constexpr rlim_t kLowFileSize = 64 << 10;                 // more than the log, less than the image of the KFD

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

  // Both limits; root may raise its own again, and so may CRIU.
  static void limit(const Program& host, __rlimit_resource resource, rlim_t most) {
    rlimit now{};
    ASSERT_EQ(::prlimit(host.pid(), resource, nullptr, &now), 0);
    const rlimit lower{most, now.rlim_max};
    ASSERT_EQ(::prlimit(host.pid(), resource, &lower, nullptr), 0);
  }
  static rlimit limit_of(const Program& host, __rlimit_resource resource) {
    rlimit now{};
    EXPECT_EQ(::prlimit(host.pid(), resource, nullptr, &now), 0);
    return now;
  }

  // The lines of the last host's log that are errors of the plugin.
  std::string errors() {
    std::istringstream log(scene_.log());
    std::string found;
    for (std::string line; std::getline(log, line);) {
      if (line.find("amdgpu_plugin: ") != std::string::npos &&
          line.find("DUMP_EXT_FILE: ") != std::string::npos)
        found += line + "\n";
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
  ASSERT_NO_FATAL_FAILURE(limit(host, RLIMIT_FSIZE, kLowFileSize));
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
  ASSERT_NO_FATAL_FAILURE(limit(host, RLIMIT_FSIZE, kLowFileSize));
  host.release_control();
  EXPECT_EQ(host.wait(), 1);
  const std::string said = errors();
  EXPECT_NE(
      said.find("write amdgpu-kfd-1.img.tmp: File too large; raise the limit of file sizes (ulimit -f)"),
      std::string::npos)
      << said;
  expect_undone();
}

// Whoever sends it and why: a manager of jobs, a timer, a limit of CPU time. How CRIU ends is the same in all
// hosts.
class EndingSignalTest : public LimitsTest {};

TEST_P(EndingSignalTest, EndsTheDumpInOrderAndThenTheHost) {
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
    EXPECT_NE(log.find("has come: the dump ends here and is undone"), std::string::npos) << log;
    EXPECT_NE(log.find("Dumping FAILED."), std::string::npos) << "the host came to its end\n" << log;
    EXPECT_EQ(log.find("ulimit -t") != std::string::npos, number == SIGXCPU) << log;
    ASSERT_NO_FATAL_FAILURE(expect_undone());
  }
}

INSTANTIATE_TEST_SUITE_P(Newest, EndingSignalTest, ::testing::Values(kVersions[3]), name_of_version);
INSTANTIATE_TEST_SUITE_P(Hosts, LimitsTest, ::testing::ValuesIn(kVersions), name_of_version);

}  // namespace
}  // namespace sluice::host_test
