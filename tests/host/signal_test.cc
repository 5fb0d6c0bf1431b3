// SPDX-License-Identifier: MIT
// SIGTERM and SIGINT for CRIU while one of our hooks of a dump runs: the dump is undone, the process and its
// queues run on, and then CRIU dies of the signal.
#include <sched.h>
#include <signal.h>

#include "plugin_test.h"

namespace sluice::host_test {
namespace {

constexpr std::uint64_t kSlowBytesPerSecond =
    16 * kMiB;  // some seconds for all of a GPU, half a second for the staging

class SignalTest : public PluginTest {
 protected:
  // A host that waits in DUMP_EXT_FILE for contents: it has said how far they are.
  Program start_waiting_dump() {
    Program host = scene_.start_host(version(), "dump", {});
    while (!scene_.has_logged("dump: ")) (void)::sched_yield();
    return host;
  }
  void slow_engines(std::uint64_t bytes_per_second = kSlowBytesPerSecond) {
    for (const unsigned gpu : {0U, 1U}) scene_.control().set_engine_rate(gpu, bytes_per_second);
  }
  void expect_undone() {
    EXPECT_TRUE(images("amdgpu-").empty());
    expect_running();
  }
};

TEST_P(SignalTest, EndsTheDumpAndThenTheHost) {
  for (const int signal : {SIGTERM, SIGINT}) {
    SCOPED_TRACE(signal);
    ASSERT_NO_FATAL_FAILURE(start());
    slow_engines();
    Program host = start_waiting_dump();
    ASSERT_EQ(::kill(host.pid(), signal), 0);
    EXPECT_EQ(host.wait(), 128 + signal);
    const std::string log = scene_.log();
    EXPECT_NE(log.find(signal == SIGTERM ? "SIGTERM has come" : "SIGINT has come"), std::string::npos) << log;
    slow_engines(0);
    ASSERT_NO_FATAL_FAILURE(expect_undone());
    ASSERT_NO_FATAL_FAILURE(dump());
    restore_and_check();
    EXPECT_EQ(heard("quit"), "ok quit");
  }
}

// Nobody needs what the engine has not copied any more: the queues run when the host ends.
TEST_P(SignalTest, EndsTheDumpThoughTheEngineHangs) {
  ASSERT_NO_FATAL_FAILURE(start());
  scene_.control().hang_fence(0, 0);
  Program host = start_waiting_dump();
  ASSERT_EQ(::kill(host.pid(), SIGTERM), 0);
  EXPECT_EQ(host.wait(), 128 + SIGTERM);
  scene_.control().clear_faults();
  scene_.control().release_hung_fences();
  ASSERT_NO_FATAL_FAILURE(expect_undone());
}

// A driver that hangs keeps nobody for ever who asks twice. The queues are then for the next dump to start
// again, or for sluice unpause.
TEST_P(SignalTest, ASecondOneActsAtOnce) {
  ASSERT_NO_FATAL_FAILURE(start());
  slow_engines();
  Program host = start_waiting_dump();
  scene_.control().between_calls([&] {  // no call of the driver returns
    ASSERT_EQ(::kill(host.pid(), SIGTERM), 0);
    while (host.has_pending(SIGTERM)) (void)::sched_yield();
    ASSERT_EQ(::kill(host.pid(), SIGTERM), 0);
    EXPECT_EQ(host.wait(), 128 + SIGTERM);
  });
  slow_engines(0);
  ASSERT_NO_FATAL_FAILURE(dump());
  restore_and_check();
}

TEST_P(SignalTest, AnIgnoredOneStaysIgnored) {
  ASSERT_NO_FATAL_FAILURE(start());
  slow_engines();
  struct sigaction ignore {
  }, before{};
  ignore.sa_handler = SIG_IGN;
  ASSERT_EQ(::sigaction(SIGTERM, &ignore, &before), 0);
  Program host = start_waiting_dump();
  ASSERT_EQ(::sigaction(SIGTERM, &before, nullptr), 0);
  ASSERT_EQ(::kill(host.pid(), SIGTERM), 0);
  EXPECT_EQ(host.wait(), 0) << scene_.log();
  slow_engines(0);
  scene_.wait_until_subject_is_gone();
  restore_and_check();
}

// A hang that the kernel does not end is answered when the user says.
TEST_P(SignalTest, AFenceThatNeverComesIsWaitedForAsLongAsTheUserSays) {
  scene_.variables["SLUICE_FENCE_TIMEOUT"] = "1";
  ASSERT_NO_FATAL_FAILURE(start());
  scene_.control().hang_fence(0, 0);
  EXPECT_NE(scene_.dump(version()),
            0);  // the host sees what is kept on purpose: the engine may still write to it
  const std::string log = scene_.log();
  EXPECT_NE(log.find("the GPU did not finish within 1000 ms"), std::string::npos) << log;
  scene_.control().clear_faults();
  scene_.control().release_hung_fences();
  expect_undone();
}

INSTANTIATE_TEST_SUITE_P(Hosts, SignalTest, ::testing::ValuesIn(kVersions), name_of_version);

}  // namespace
}  // namespace sluice::host_test
