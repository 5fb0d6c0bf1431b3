// SPDX-License-Identifier: MIT
// One writer at a time in a directory: of dumps, pre-dumps and flattens the second is refused, and what the
// first one makes stays intact.
#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>

#include <filesystem>
#include <set>
#include <string>

#include "images_in_memory.h"
#include "plugin_test.h"

namespace sluice::plugin_test {
namespace {

namespace fs = std::filesystem;

constexpr int kDone = 0, kRefused = 3;
constexpr const char* kBusy = "[SL-T47]";

class OneWriterTest : private ImagesInMemory, public PluginTest {
 protected:
  OneWriterTest() : PluginTest(small_machine(), images_in_memory()) {}

  // One that goes on for as long as the test wants: CRIU's part is held, and copies are slow.
  Program begin_predump() {
    scene_.variables["SLUICE_PREDUMP_RATE"] = "64K";
    Program host = scene_.start_host(version(), "pre-dump", {"--hold", "cpu_pages"});
    EXPECT_EQ(host.hear_control(), "cpu_pages") << scene_.log();
    scene_.variables.erase("SLUICE_PREDUMP_RATE");
    while (images("amdgpu-predump-pages").size() < 2) (void)::sched_yield();  // a file for each GPU
    return host;
  }
  int sluice(const Strings& more) {
    Strings arguments = {(program_directory() / "../../src/cli/sluice").string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return scene_.start_program(arguments).wait();
  }
  int predump(const Strings& more = {}) {
    Strings arguments = {"predump", std::to_string(scene_.subject_pid()), "--images-dir",
                         scene_.images().string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return sluice(arguments);
  }
  bool has_mark() { return images("amdgpu-predump.img").size() == 1; }
};

INSTANTIATE_TEST_SUITE_P(Versions, OneWriterTest, ::testing::Values(kVersions[0], kVersions[2]),
                         name_of_version);

TEST_P(OneWriterTest, DuringAPreDumpThereIsNoOther) {
  start({"--no-queues"});
  Program first = begin_predump();
  const std::set<std::string> before = images("amdgpu-");
  ASSERT_FALSE(before.empty());
  EXPECT_EQ(predump(), kRefused);
  EXPECT_EQ(predump({"--replace"}), kRefused);
  // CRIU's own status is not the plugin's to decide.
  EXPECT_EQ(scene_.start_host(version(), "pre-dump", {}).wait(), 0);
  EXPECT_TRUE(scene_.has_logged(kBusy));
  EXPECT_EQ(images("amdgpu-"), before);
  first.kill();
  expect_running();
  EXPECT_EQ(predump(), kDone) << "the kernel has released the lock";
  EXPECT_TRUE(has_mark());
}

TEST_P(OneWriterTest, DuringAPreDumpADumpIsRefusedBeforeAnyQueueStops) {
  start();
  Program first = begin_predump();
  const std::set<std::string> before = images("amdgpu-");
  const std::uint64_t stops = scene_.control().criu_calls(kProcessInfo);
  EXPECT_NE(scene_.dump(version()), 0);
  EXPECT_TRUE(scene_.has_logged(kBusy)) << scene_.log();
  EXPECT_EQ(scene_.control().criu_calls(kProcessInfo), stops);
  EXPECT_EQ(images("amdgpu-"), before);
  expect_running();
  first.kill();
  EXPECT_EQ(scene_.dump(version()), 0) << scene_.log();
}

TEST_P(OneWriterTest, DuringADumpThereIsNoOtherWriter) {
  start({"--no-queues"});
  Program first = scene_.start_host(version(), "dump", {"--hold", "dump_ext_file"});
  ASSERT_EQ(first.hear_control(), "dump_ext_file") << scene_.log();
  const std::set<std::string> before = images("amdgpu-");
  ASSERT_FALSE(before.empty());
  EXPECT_EQ(predump({"--replace"}), kRefused);
  EXPECT_NE(sluice({"flatten", scene_.images().string()}), kDone);
  EXPECT_EQ(images("amdgpu-"), before);
  first.release_control();
  EXPECT_EQ(first.wait(), 0) << scene_.log();
  scene_.wait_until_subject_is_gone();
  restore_and_check();
}

// As flatten holds it.
TEST_P(OneWriterTest, WhereAnotherWriterWorksADumpLeavesItsImages) {
  start({"--no-queues"});
  fs::create_directories(scene_.images());
  const UniqueFd lock(::open(scene_.images().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  EXPECT_NE(scene_.dump(version()), 0);
  EXPECT_TRUE(scene_.has_logged(kBusy)) << scene_.log();
  EXPECT_TRUE(images("amdgpu-").empty());
  expect_running();
  ASSERT_EQ(::flock(lock.get(), LOCK_UN), 0);
  EXPECT_EQ(scene_.dump(version()), 0) << scene_.log();
}

// Its images are CRIU's alone.
TEST_P(OneWriterTest, AProcessWithoutAGpuIsDumpedWhoeverWorksThere) {
  const std::string ready = scene_.start_subject({"--plain"});
  ASSERT_TRUE(ready.starts_with("ready")) << ready;
  fs::create_directories(scene_.images());
  const UniqueFd lock(::open(scene_.images().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  EXPECT_EQ(scene_.dump(version()), 0) << scene_.log();
}

TEST_P(OneWriterTest, TheCommandReplacesWhatIsCompleteOnlyIfItIsTold) {
  start({"--no-queues"});
  EXPECT_EQ(predump(), kDone);
  const std::set<std::string> before = images("amdgpu-");
  EXPECT_EQ(predump(), kRefused);
  EXPECT_EQ(images("amdgpu-"), before);
  EXPECT_EQ(predump({"--replace"}), kDone);
  EXPECT_TRUE(has_mark());
  // One that was interrupted is nobody's parent.
  fs::remove(scene_.images() / "amdgpu-predump.img");
  EXPECT_EQ(predump(), kDone);
  EXPECT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
  EXPECT_EQ(predump(), kRefused);
  EXPECT_FALSE(images("amdgpu-kfd-").empty());
  EXPECT_EQ(predump({"--replace"}), kDone);
  EXPECT_TRUE(images("amdgpu-kfd-").empty());
  EXPECT_TRUE(has_mark());
}

}  // namespace
}  // namespace sluice::plugin_test
