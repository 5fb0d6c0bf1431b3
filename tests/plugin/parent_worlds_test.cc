// SPDX-License-Identifier: MIT
// Dumps with a parent, of all that a process can have: memory of render nodes and shared memory, in trees.
// And under all that they can meet: other GPUs, links of every kind, the longest chain, a stream, an early
// death.
#include <sched.h>
#include <signal.h>

#include <string>

#include "lookalike/task_tree.h"
#include "lookalike/test_streamer.h"
#include "parent_scene.h"

namespace sluice::plugin_test {
namespace {

using lookalike::capture_to;
using lookalike::serve_from;
using lookalike::Streamer;
using lookalike::TaskTree;

constexpr std::uint64_t kSlowBytesPerSecond = 4 * kMiB;

// Hosts on which tasks fill their memory themselves, and hosts with a content server.
class ParentWorldTest : public ParentTest {
 protected:
  void set_rate(std::uint64_t bytes_per_second) {
    for (const unsigned gpu : {0U, 1U}) scene_.control().set_engine_rate(gpu, bytes_per_second);
  }
  // A dump on the parent of that name, whose contents are on their way.
  Program start_slow_dump(const std::string& parent) {
    set_rate(kSlowBytesPerSecond);
    Program host = scene_.start_host(version(), "dump", {"--prev-images-dir", "../" + parent});
    while (!scene_.has_logged("dump: ")) (void)::sched_yield();
    return host;
  }
};

INSTANTIATE_TEST_SUITE_P(Versions, ParentWorldTest, ::testing::Values(kVersions[0], kVersions[2]),
                         name_of_version);

TEST_P(ParentWorldTest, BosOfRenderNodesWriteWhatHasChanged) {
  start({"--gem-handles", "1,3,70", "--gem-bytes", "1M", "--svm-context"});
  expect_chain_of_three();
  EXPECT_FALSE(images_in(place("third"), "amdgpu-delta-drm-").empty());
}

TEST_P(ParentWorldTest, SharedMemoryIsOneAgain) {
  start({"--share", "kfd", "--share-fd", "--gem-handles", "1,3", "--svm-context"});
  ASSERT_NO_FATAL_FAILURE(expect_chain_of_three());
  EXPECT_EQ(heard("poke 4711"), "ok poke 4711");
  EXPECT_EQ(heard("peek"), "ok peek 4711");
}

TEST_P(ParentWorldTest, MemoryThatADescriptorAloneHasComesBack) {
  start({"--dmabuf-fd", "--svm-context"});
  expect_chain_of_three();
}

// The process' own names of its GPUs stay, and tell which buffer is which.
TEST_P(ParentWorldTest, AProcessThatHasMovedToOtherGpusHasItsParentAllTheSame) {
  start({"--gpus", "2"});
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  vamdgpu::MachineOptions other = small_machine();
  other.gpu_ids = {0x1234, 0x4321};
  other.minor_base = 140;
  scene_.move_to(other);
  ASSERT_NO_FATAL_FAILURE(restore_from("first"));
  ASSERT_NO_FATAL_FAILURE(dump_on("first", "second"));
  EXPECT_EQ(deltas("second").size(), 2U) << dump_log_;
  EXPECT_LT(bytes_on_disk("second"), bytes_on_disk("first") / 2);
  other.gpu_ids = {0x4321, 0x5678};
  scene_.move_to(other);
  ASSERT_NO_FATAL_FAILURE(restore_from("second"));
  expect_whole();
}

TEST_P(ParentWorldTest, ATreeWritesWhatHasChangedAndComesBackIntact) {
  TaskTree tasks(scene_);
  for (const char* seed : {"1", "2"}) {
    const std::string ready =
        tasks.add({"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--svm-context", "--seed", seed});
    ASSERT_TRUE(ready.starts_with("ready")) << ready;
  }
  Strings more = {"--leave-running"};
  for (const std::string name : {"first", "second", "third"}) {
    SCOPED_TRACE(name);
    if (name == "third") more.erase(more.begin());
    ASSERT_EQ(scene_.dump(version(), tasks.with_pids(more)), 0) << scene_.log();
    EXPECT_EQ(deltas(scene_.images().filename()).size(), name == "first" ? 0U : 4U);
    EXPECT_EQ(images("amdgpu-kfd-").size(), name == "first" ? 2U : 0U);
    EXPECT_EQ(images("amdgpu-renderD-").empty(), name != "first");
    if (name == "third") break;
    fs::rename(scene_.images(), place(name));
    EXPECT_EQ(tasks.what_is_not_whole(), "");
    more = {"--leave-running", "--prev-images-dir", "../" + name};
  }
  tasks.wait_until_dumped();
  overwrite_gpu_memory();
  ASSERT_EQ(scene_.start_host(version(), "restore", {}).wait(), 0) << scene_.log();
  ASSERT_TRUE(tasks.meet_restored());
  EXPECT_EQ(tasks.what_is_not_whole(), "");
  EXPECT_EQ(tasks.who_does_not_quit(), "");
}

// Each on the one before: a dump, a pre-dump, a dump, two pre-dumps, a dump.
TEST_P(ParentWorldTest, AChainOfDumpsAndPreDumpsComesBackIntact) {
  const auto predump_on = [this](const std::string& parent, const std::string& name) {
    EXPECT_EQ(heard("change"), "ok change");
    EXPECT_EQ(scene_.start_host(version(), "pre-dump", {"--prev-images-dir", "../" + parent}).wait(), 0);
    fs::rename(scene_.images(), place(name));
    EXPECT_FALSE(images_in(place(name), "amdgpu-predump-delta-").empty()) << scene_.log();
    EXPECT_EQ(heard("replace"), "ok replace");
  };
  start({"--no-queues"});
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  ASSERT_NO_FATAL_FAILURE(restore_from("first"));
  predump_on("first", "second");
  ASSERT_NO_FATAL_FAILURE(dump_on("second", "third"));
  EXPECT_TRUE(is_delta("third")) << dump_log_;
  ASSERT_NO_FATAL_FAILURE(restore_from("third"));
  expect_whole();
  predump_on("third", "fourth");
  predump_on("fourth", "fifth");
  ASSERT_NO_FATAL_FAILURE(dump_on("fifth", "sixth"));
  EXPECT_TRUE(is_delta("sixth")) << dump_log_;
  ASSERT_NO_FATAL_FAILURE(restore_from("sixth"));
  expect_whole();
}

TEST_P(ParentWorldTest, AStreamIsCompleteByItself) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  ASSERT_NO_FATAL_FAILURE(restore_from("first"));
  const std::string image = (place("image")).string();
  fs::create_directory(scene_.images());
  {
    Streamer streamer(scene_.images(), "capture", capture_to(image));
    ASSERT_TRUE(streamer.ready());
    ASSERT_EQ(scene_.start_host(version(), "dump", {"--stream", "--prev-images-dir", "../first"}).wait(), 0)
        << scene_.log();
    ASSERT_EQ(streamer.wait(), 0);
  }
  scene_.wait_until_subject_is_gone();
  fs::remove_all(place("first"));
  overwrite_gpu_memory();
  Streamer streamer(scene_.images(), "serve", serve_from(image));
  ASSERT_TRUE(streamer.ready());
  ASSERT_EQ(scene_.restore(version(), {"--stream"}), 0) << scene_.log();
  streamer.kill();
  expect_whole();
}

TEST_P(ParentWorldTest, ADumpThatIsKilledLeavesItsParentAndNothingThatLooksComplete) {
  start();
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  ASSERT_NO_FATAL_FAILURE(restore_from("first"));
  const auto before = bytes_of("first");
  Program host = start_slow_dump("first");
  scene_.control().between_calls([&] { host.kill(); });
  set_rate(0);
  for (const std::string& name : images("amdgpu-")) EXPECT_TRUE(name.ends_with(".tmp")) << name;
  EXPECT_EQ(bytes_of("first"), before);
  fs::remove_all(scene_.images());
  ASSERT_NO_FATAL_FAILURE(dump_on("first", "second"));
  EXPECT_TRUE(is_delta("second"));
  ASSERT_NO_FATAL_FAILURE(restore_from("second"));
  expect_whole();
}

TEST_P(ParentWorldTest, ASignalUndoesTheDumpAndLeavesItsParent) {
  (void)::signal(SIGTERM, SIG_DFL);  // the hosts'
  start();
  ASSERT_NO_FATAL_FAILURE(dump_as("first"));
  ASSERT_NO_FATAL_FAILURE(restore_from("first"));
  const auto before = bytes_of("first");
  Program host = start_slow_dump("first");
  ASSERT_EQ(::kill(host.pid(), SIGTERM), 0);
  EXPECT_EQ(host.wait(), 128 + SIGTERM);
  set_rate(0);
  EXPECT_TRUE(images("amdgpu-").empty());
  EXPECT_EQ(bytes_of("first"), before);
  expect_running();
}

class LongestChainTest : public ParentTest {};

INSTANTIATE_TEST_SUITE_P(Versions, LongestChainTest, ::testing::Values(kVersions[2]), name_of_version);

// 32 of them, and no more: what a dump makes a restore takes.
TEST_P(LongestChainTest, ComesBackAndNoneIsLonger) {
  const std::string ready = scene_.start_subject({"--vram", "256K", "--gtt", "64K"});
  ASSERT_TRUE(ready.starts_with("ready")) << ready;
  Strings more = {"--leave-running"};
  unsigned made = 0;
  for (bool goes_on = true; goes_on && made <= kMostAncestors + 2; ++made) {
    const std::string name = std::to_string(made);
    ASSERT_EQ(scene_.dump(version(), more), 0) << scene_.log();
    dump_log_ = scene_.log();
    fs::rename(scene_.images(), place(name));
    goes_on = made == 0 || is_delta(name);
    more = {"--leave-running", "--prev-images-dir", "../" + name};
  }
  EXPECT_EQ(made, kMostAncestors + 2) << "one that is complete, those on it, and another that is complete";
  expect_full(std::to_string(made - 1), "ancestors already, the limit");
  scene_.subject().kill();
  scene_.wait_until_subject_is_gone();
  ASSERT_NO_FATAL_FAILURE(restore_from(std::to_string(kMostAncestors)));
  expect_whole();
}

// ---- Links, and who follows them

class ParentLinkTest : public ParentTest {
 protected:
  void make_two() {
    start();
    ASSERT_NO_FATAL_FAILURE(dump_as("first"));
    ASSERT_NO_FATAL_FAILURE(restore_from("first"));
    ASSERT_NO_FATAL_FAILURE(dump_on("first", "second"));
  }
  void link_to(const fs::path& target) const {
    fs::remove(place("second") / "parent");
    fs::create_directory_symlink(target, place("second") / "parent");
  }
  // Tasks get directories from it.
  bool has_fdstore() const { return hooks() >= 13; }
};

INSTANTIATE_TEST_SUITE_P(Versions, ParentLinkTest, ::testing::ValuesIn(kVersions), name_of_version);

TEST_P(ParentLinkTest, TasksThatFillTheirMemoryThemselvesHaveTheChain) {
  scene_.variables["SLUICE_PARALLEL"] = "off";
  ASSERT_NO_FATAL_FAILURE(make_two());
  ASSERT_NO_FATAL_FAILURE(restore_from("second"));
  expect_whole();
}

TEST_P(ParentLinkTest, AnAbsoluteOneIsFollowedOrRefusedByName) {
  ASSERT_NO_FATAL_FAILURE(make_two());
  link_to(place("first"));
  for (const char* parallel : {"on", "off"}) {
    scene_.variables["SLUICE_PARALLEL"] = parallel;
    if (!has_fdstore()) {
      ASSERT_NO_FATAL_FAILURE(expect_refused_at_once("second", "the parent is an absolute link"));
      continue;
    }
    ASSERT_NO_FATAL_FAILURE(restore_from("second"));
    expect_whole();
    EXPECT_EQ(heard("quit"), "ok quit");
  }
}

// The container has another directory there. Who has the directory itself does not notice.
TEST_P(ParentLinkTest, OneThatLeadsElsewhereForTheTaskIsNotFollowed) {
  scene_.variables["SLUICE_PARALLEL"] = "off";
  ASSERT_NO_FATAL_FAILURE(make_two());
  fs::copy(place("first"), place("other"), fs::copy_options::recursive);
  fs::rename(place("second"), scene_.images());
  overwrite_gpu_memory();
  scene_.control().clear_trace();
  Program host = scene_.start_host(version(), "restore", {"--hold", "premapped"});
  ASSERT_EQ(host.hear_control(), "premapped") << scene_.log();
  fs::remove(scene_.images() / "parent");
  fs::create_directory_symlink("../other", scene_.images() / "parent");
  host.release_control();
  if (has_fdstore()) {
    scene_.adopt(std::move(host));
    expect_whole();
    return;
  }
  EXPECT_EQ(host.wait(), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("leads to another directory here"), std::string::npos) << log;
  expect_not_resumed();
}

}  // namespace
}  // namespace sluice::plugin_test
