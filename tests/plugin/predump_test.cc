// SPDX-License-Identifier: MIT
// Pre-dumps by the shipped plugin: contents are copied while the subject runs. The dump that follows writes
// what has changed since, and comes back intact. What ends too early leaves nothing that looks like a parent.
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "images_in_memory.h"
#include "lookalike/task_tree.h"
#include "plugin_test.h"

namespace sluice::plugin_test {
namespace {

using lookalike::TaskTree;

namespace fs = std::filesystem;

class PreDumpTest : private ImagesInMemory, public PluginTest {
 protected:
  PreDumpTest() : PluginTest(machine(), images_in_memory()) {}

  // A pre-dump holds no more than is free: of GTT, for both GPUs what their queues save there.
  static vamdgpu::MachineOptions machine() {
    vamdgpu::MachineOptions options = small_machine();
    options.gtt_bytes = 200 * kMiB;
    return options;
  }

  // Into the scene's directory, which is moved to `name`, next to it.
  void predump_as(const std::string& name, const Strings& more = {}) {
    EXPECT_EQ(scene_.start_host(version(), "pre-dump", more).wait(), 0) << scene_.log();
    move_to(name);
  }
  void dump_as(const std::string& name, const std::string& parent) {
    ASSERT_EQ(scene_.dump(version(), {"--prev-images-dir", "../" + parent}), 0) << scene_.log();
    scene_.wait_until_subject_is_gone();
    move_to(name);
  }
  void restore_from(const std::string& name) {
    overwrite_gpu_memory();
    fs::rename(place(name), scene_.images());
    const int status = scene_.restore(version());
    const std::string log = scene_.log();
    fs::rename(scene_.images(), place(name));
    ASSERT_EQ(status, 0) << log;
  }
  void move_to(const std::string& name) {
    log_ = scene_.log();
    fs::remove_all(place(name));
    fs::rename(scene_.images(), place(name));
  }
  fs::path place(const std::string& name) const { return scene_.images().parent_path() / name; }
  std::set<std::string> predumped(const std::string& name) const {
    return images_in(place(name), "amdgpu-predump");
  }
  bool is_delta(const std::string& name) const { return !images_in(place(name), "amdgpu-delta-").empty(); }
  bool has_mark(const std::string& name) const { return predumped(name).contains("amdgpu-predump.img"); }
  std::uint64_t bytes_on_disk(const std::string& name, const std::string& prefix) const {
    std::uint64_t bytes = 0;
    for (const std::string& file : images_in(place(name), prefix)) {
      struct stat status {};
      if (::stat((place(name) / file).c_str(), &status) == 0)
        bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
    return bytes;
  }
  void expect_logged(const std::string& text) {
    EXPECT_NE(log_.find(text), std::string::npos) << "not said: " << text << "\n" << log_;
  }
  // The dump that follows has had nothing of it.
  void expect_full_dump_after(const std::string& predump) {
    ASSERT_NO_FATAL_FAILURE(dump_as("after", predump));
    EXPECT_FALSE(is_delta("after"));
    const std::string log = log_;
    ASSERT_NO_FATAL_FAILURE(restore_from("after"));
    expect_whole();
    log_ = log;
  }

  static bool is_stopped(pid_t pid) {
    return read_file("/proc/" + std::to_string(pid) + "/status").find("State:\tT") != std::string::npos;
  }

  std::string log_;  // of the last one
};

INSTANTIATE_TEST_SUITE_P(Versions, PreDumpTest, ::testing::ValuesIn(kVersionsOfLongSuites), name_of_version);

TEST_P(PreDumpTest, TheDumpThatFollowsWritesWhatHasChangedAndComesBackIntact) {
  start();
  ASSERT_NO_FATAL_FAILURE(predump_as("before"));
  EXPECT_TRUE(has_mark("before")) << log_;
  expect_logged("GPU queues were paused for");
  EXPECT_TRUE(images_in(place("before"), "amdgpu-kfd").empty());
  EXPECT_TRUE(images_in(place("before"), "amdgpu-pages").empty());
  expect_running();
  EXPECT_EQ(heard("change"), "ok change");
  ASSERT_NO_FATAL_FAILURE(dump_as("after", "before"));
  EXPECT_TRUE(is_delta("after")) << log_;
  EXPECT_LT(bytes_on_disk("after", "amdgpu-delta"), bytes_on_disk("before", "amdgpu-predump-pages") / 2)
      << log_;
  ASSERT_NO_FATAL_FAILURE(restore_from("after"));
  expect_whole();
}

TEST_P(PreDumpTest, TwoPreDumpsAndADumpAreAChain) {
  start({"--no-queues"});
  ASSERT_NO_FATAL_FAILURE(predump_as("first"));
  EXPECT_EQ(heard("change"), "ok change");
  ASSERT_NO_FATAL_FAILURE(predump_as("second", {"--prev-images-dir", "../first"}));
  EXPECT_TRUE(has_mark("second")) << log_;
  EXPECT_FALSE(images_in(place("second"), "amdgpu-predump-delta-").empty()) << log_;
  EXPECT_LT(bytes_on_disk("second", "amdgpu-predump-"), bytes_on_disk("first", "amdgpu-predump-") / 2);
  EXPECT_EQ(heard("replace"), "ok replace");
  ASSERT_NO_FATAL_FAILURE(dump_as("third", "second"));
  EXPECT_TRUE(is_delta("third")) << log_;
  ASSERT_NO_FATAL_FAILURE(restore_from("third"));
  expect_whole();
}

// Of render nodes, too: a file each. `verify` reads what the dump has from the pre-dump.
TEST_P(PreDumpTest, BosOfRenderNodesAreInIt) {
  start({"--no-queues", "--gem-handles", "1,3,70"});
  ASSERT_NO_FATAL_FAILURE(predump_as("before"));
  EXPECT_TRUE(has_mark("before")) << log_;
  EXPECT_FALSE(images_in(place("before"), "amdgpu-predump-drm-pages-").empty());
  ASSERT_NO_FATAL_FAILURE(dump_as("after", "before"));
  EXPECT_FALSE(images_in(place("after"), "amdgpu-delta-drm-").empty()) << log_;
  const std::string sluice = (program_directory() / "../../src/cli/sluice").string();
  EXPECT_EQ(scene_.start_program({sluice, "verify", place("after").string()}).wait(), 0);
  ASSERT_NO_FATAL_FAILURE(restore_from("after"));
  expect_whole();
}

TEST_P(PreDumpTest, ATreeHasOne) {
  TaskTree tasks(scene_);
  for (const char* seed : {"1", "2"}) {
    const std::string ready =
        tasks.add({"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--no-queues", "--seed", seed});
    ASSERT_TRUE(ready.starts_with("ready")) << ready;
  }
  EXPECT_EQ(scene_.start_host(version(), "pre-dump", tasks.with_pids()).wait(), 0) << scene_.log();
  move_to("before");
  EXPECT_TRUE(has_mark("before")) << log_;
  EXPECT_EQ(tasks.what_is_not_whole(), "");
  EXPECT_EQ(tasks.wrong_answers({"change", "replace"}), "");
  ASSERT_EQ(scene_.dump(version(), tasks.with_pids({"--prev-images-dir", "../before"})), 0) << scene_.log();
  tasks.wait_until_dumped();
  EXPECT_GE(images("amdgpu-delta-").size(), 4U) << "two processes on two GPUs";
  overwrite_gpu_memory();
  ASSERT_EQ(scene_.start_host(version(), "restore", {}).wait(), 0) << scene_.log();
  ASSERT_TRUE(tasks.meet_restored());
  EXPECT_EQ(tasks.what_is_not_whole(), "");
  EXPECT_EQ(tasks.who_does_not_quit(), "");
}

// Beside the lanes: they are held where CRIU writes its own images, and BOs go and come.
TEST_P(PreDumpTest, MemoryThatSeveralFilesHaveIsCopiedOnce) {
  start({"--svm-context", "--share", "kfd", "--gem-handles", "1,3"});
  ASSERT_NO_FATAL_FAILURE(predump_as("before"));
  EXPECT_TRUE(has_mark("before")) << log_;
  ASSERT_NO_FATAL_FAILURE(dump_as("after", "before"));
  EXPECT_EQ(images_in(place("before"), "amdgpu-predump-drm-pages").size(),
            images_in(place("after"), "amdgpu-drm-pages").size() +
                images_in(place("after"), "amdgpu-delta-drm").size());
  ASSERT_NO_FATAL_FAILURE(restore_from("after"));
  expect_whole();
}

TEST_P(PreDumpTest, TheJobFreesAndAllocatesMeanwhile) {
  start({"--no-queues"});
  scene_.variables["SLUICE_PREDUMP_RATE"] = "8M";
  Program host = scene_.start_host(version(), "pre-dump", {"--hold", "cpu_pages"});
  ASSERT_EQ(host.hear_control(), "cpu_pages") << scene_.log();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(heard("replace"), "ok replace");
    EXPECT_EQ(heard("change"), "ok change");
    EXPECT_EQ(heard("work"), "ok work");
  }
  EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
  host.release_control();
  EXPECT_EQ(host.wait(), 0) << scene_.log();
  scene_.variables.erase("SLUICE_PREDUMP_RATE");
  move_to("before");
  EXPECT_TRUE(has_mark("before")) << log_;
  ASSERT_NO_FATAL_FAILURE(dump_as("after", "before"));
  EXPECT_TRUE(is_delta("after")) << log_;
  ASSERT_NO_FATAL_FAILURE(restore_from("after"));
  expect_whole();
}

// Memory that the job frees is its own again, whatever the disk does: here it takes nothing after the first
// chunk of each lane.
TEST_P(PreDumpTest, WhatTheJobFreesIsFree) {
  start({"--no-queues", "--vram", "8M", "--bos", "small"});
  const std::uint64_t before = scene_.control().counts().vram_bytes;
  scene_.variables["SLUICE_PREDUMP_RATE"] = "1";
  Program host = scene_.start_host(version(), "pre-dump", {"--hold", "cpu_pages"});
  ASSERT_EQ(host.hear_control(), "cpu_pages") << scene_.log();
  // Nearly all of them, one after the other: 16 MiB in all.
  for (int i = 0; i < 60; ++i) ASSERT_EQ(heard("replace"), "ok replace") << i;
  while (scene_.control().counts().vram_bytes > before + 4 * kMiB) (void)::sched_yield();
  host.kill();
  EXPECT_FALSE(fs::exists(scene_.images() / "amdgpu-predump.img"));
  expect_running();
}

// Where VRAM is nearly full, a BO that is freed and allocated again would find none, so nothing is held.
TEST_P(PreDumpTest, NothingIsHeldWhereVramIsNearlyFull) {
  start({"--no-queues", "--vram", "23M"});
  scene_.variables["SLUICE_PREDUMP_RATE"] = "1M";
  Program host = scene_.start_host(version(), "pre-dump", {"--hold", "cpu_pages"});
  ASSERT_EQ(host.hear_control(), "cpu_pages") << scene_.log();
  for (int i = 0; i < 30; ++i) ASSERT_EQ(heard("replace"), "ok replace") << i;
  host.kill();
  expect_queues_run(scene_.subject_pid());
  EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
}

TEST_P(PreDumpTest, AKilledOneIsNobodysParent) {
  start();
  scene_.variables["SLUICE_PREDUMP_RATE"] = "1M";
  Program host = scene_.start_host(version(), "pre-dump", {"--hold", "cpu_pages"});
  ASSERT_EQ(host.hear_control(), "cpu_pages") << scene_.log();
  host.kill();
  scene_.variables.erase("SLUICE_PREDUMP_RATE");
  move_to("before");
  EXPECT_FALSE(has_mark("before"));
  expect_running();
  ASSERT_NO_FATAL_FAILURE(expect_full_dump_after("before"));
}

TEST_P(PreDumpTest, WithoutItsMarkItIsNotUsedAndThatIsSaid) {
  start({"--no-queues"});
  ASSERT_NO_FATAL_FAILURE(predump_as("before"));
  fs::remove(place("before") / "amdgpu-predump.img");
  ASSERT_NO_FATAL_FAILURE(expect_full_dump_after("before"));
  expect_logged("[SL-I31]");
}

// CRIU's failure is ours; the job runs on.
TEST_P(PreDumpTest, FailsWithCriuAndLeavesNothing) {
  start({"--no-queues"});
  EXPECT_EQ(scene_.start_host(version(), "pre-dump", {"--fail-after", "cpu_pages"}).wait(), 1);
  move_to("before");
  EXPECT_EQ(predumped("before"), std::set<std::string>());
  expect_running();
  ASSERT_NO_FATAL_FAILURE(expect_full_dump_after("before"));
}

// Lanes that have ended have complete files, which have no names yet.
TEST_P(PreDumpTest, FailsWithCriuWhenAllIsCopiedAndLeavesNothing) {
  start({"--no-queues"});
  const vamdgpu::Counts before = scene_.control().counts();
  Program host =
      scene_.start_host(version(), "pre-dump", {"--hold", "cpu_pages", "--fail-after", "cpu_pages"});
  ASSERT_EQ(host.hear_control(), "cpu_pages") << scene_.log();
  // Each BO is a dma-buf until it is copied. A lane that ends gives up its contexts.
  for (vamdgpu::Counts now = scene_.control().counts();
       now.dma_bufs > before.dma_bufs || now.contexts > before.contexts; now = scene_.control().counts())
    (void)::sched_yield();
  host.release_control();
  EXPECT_EQ(host.wait(), 1);
  move_to("before");
  EXPECT_EQ(predumped("before"), std::set<std::string>());
  expect_running();
  ASSERT_NO_FATAL_FAILURE(expect_full_dump_after("before"));
}

// Ours is not CRIU's: its status stays, and a warning says what to expect.
TEST_P(PreDumpTest, LanesThatFailLeaveNothingAndCriusStatus) {
  start({"--no-queues"});
  scene_.variables["SLUICE_PREDUMP_RATE"] = "4M";
  Program host = scene_.start_host(version(), "pre-dump", {"--hold", "cpu_pages"});
  ASSERT_EQ(host.hear_control(), "cpu_pages") << scene_.log();
  for (std::uint32_t gpu = 0; gpu < 2; ++gpu) scene_.control().lose_vram(gpu);
  host.release_control();
  EXPECT_EQ(host.wait(), 0);
  scene_.control().clear_faults();
  scene_.variables.erase("SLUICE_PREDUMP_RATE");
  move_to("before");
  EXPECT_TRUE(predumped("before").empty());
  expect_logged("[SL-D62]");
  expect_running();
}

// What cannot be copied while the job runs is left to the dump.
TEST_P(PreDumpTest, BosThatCannotBeCopiedAreWrittenByTheDump) {
  start({"--no-queues"});
  constexpr std::uint32_t kSubmit = 0x44;
  scene_.control().inject({vamdgpu::On::Render, kSubmit, -1, ENOMEM, 0, 3});
  ASSERT_NO_FATAL_FAILURE(predump_as("before"));
  scene_.control().clear_faults();
  EXPECT_TRUE(has_mark("before")) << log_;
  expect_logged("[SL-D65]");
  ASSERT_NO_FATAL_FAILURE(dump_as("after", "before"));
  ASSERT_NO_FATAL_FAILURE(restore_from("after"));
  expect_whole();
}

class PreDumpCopyTest : public PreDumpTest {};

// The oldest host, and one that has all hooks of a pre-dump.
INSTANTIATE_TEST_SUITE_P(Versions, PreDumpCopyTest, ::testing::Values(kVersions[0], kVersions[2]),
                         name_of_version);

// As when a BO is freed, or a queue is reset, in the middle of its copy. ETIME: the kernel has reset the
// engine.
TEST_P(PreDumpCopyTest, BosWhoseCopyFailsAreWrittenByTheDump) {
  for (const int error : {EIO, ETIME}) {
    SCOPED_TRACE(error);
    if (error == EIO) start({"--no-queues"});
    scene_.control().fail_fence(0, scene_.control().fences_made(0) + 1, error);
    ASSERT_NO_FATAL_FAILURE(predump_as("before"));
    scene_.control().clear_faults();
    EXPECT_TRUE(has_mark("before")) << log_;
    expect_logged("[SL-D65]");
    ASSERT_NO_FATAL_FAILURE(dump_as("after", "before"));
    EXPECT_TRUE(is_delta("after")) << log_;
    ASSERT_NO_FATAL_FAILURE(restore_from("after"));
    expect_whole();
  }
}

// What it may still write to stays as it is until the host's process ends; nothing of it gets into the files.
TEST_P(PreDumpCopyTest, ACopyThatNeverEndsLeavesItsGpuToTheDump) {
  start({"--no-queues"});
  ASSERT_NO_FATAL_FAILURE(predump_as("first"));
  scene_.variables["SLUICE_FENCE_TIMEOUT"] = "1";
  scene_.control().hang_fence(0, scene_.control().fences_made(0) + 2);
  ASSERT_NO_FATAL_FAILURE(predump_as("before", {"--prev-images-dir", "../first"}));
  scene_.control().release_hung_fences();
  scene_.control().clear_faults();
  scene_.variables.erase("SLUICE_FENCE_TIMEOUT");
  EXPECT_TRUE(has_mark("before")) << log_;
  expect_logged("[SL-D64]");
  EXPECT_EQ(log_.find("[SL-D62]"), std::string::npos) << log_;
  expect_running();
  ASSERT_NO_FATAL_FAILURE(dump_as("after", "before"));
  EXPECT_EQ(images_in(place("after"), "amdgpu-pages-").size(), 1U) << "of this GPU";
  std::set<std::string> deltas = images_in(place("after"), "amdgpu-delta-");
  std::erase_if(deltas, [](const std::string& name) {
    return name.find("-kfd-") != name.npos || name.find("-renderD-") != name.npos;
  });
  EXPECT_EQ(deltas.size(), 1U) << "of the other one";
  ASSERT_NO_FATAL_FAILURE(restore_from("after"));
  expect_whole();
}

// The first one asks for an older dump's pause. Queues that stand are no matter for a warning.
TEST_P(PreDumpTest, AnUnpauseThatIsRefusedFailsItAndIsTriedAgain) {
  start();
  scene_.control().inject({vamdgpu::On::Kfd, kCriuNr, static_cast<int>(kUnpause), EIO, 1, 1});
  EXPECT_EQ(scene_.start_host(version(), "pre-dump", {}).wait(), 1) << scene_.log();
  scene_.control().clear_faults();
  move_to("before");
  EXPECT_TRUE(predumped("before").empty());
  expect_running();
}

TEST_P(PreDumpTest, SwitchedOffItTouchesNothing) {
  start({"--no-queues"});
  scene_.variables["SLUICE_PREDUMP"] = "off";
  scene_.control().clear_trace();
  ASSERT_NO_FATAL_FAILURE(predump_as("before"));
  EXPECT_TRUE(predumped("before").empty());
  EXPECT_EQ(scene_.control().criu_calls(kProcessInfo), 0U);
  scene_.variables.erase("SLUICE_PREDUMP");
  expect_running();
  ASSERT_NO_FATAL_FAILURE(expect_full_dump_after("before"));
}

// The job is left alone, and CRIU goes on.
TEST_P(PreDumpTest, SettingsThatItCannotWorkWithLeaveEverythingToTheDump) {
  start({"--no-queues"});
  const std::map<std::string, std::string> settings = {{"SLUICE_CHECKSUM", "off"},
                                                       {"SLUICE_KEY_FILE", "/nowhere/key"}};
  for (const auto& [name, value] : settings) {
    SCOPED_TRACE(name);
    scene_.variables[name] = value;
    ASSERT_NO_FATAL_FAILURE(predump_as("before"));
    scene_.variables.erase(name);
    EXPECT_TRUE(predumped("before").empty());
    expect_logged("[SL-D62]");
    expect_running();
  }
}

// Which refuses it, with the reason.
TEST_P(PreDumpTest, BosThatCannotBeSavedAreLeftToTheDump) {
  for (const char* kind : {"always-valid", "encrypted", "userptr"}) {
    SCOPED_TRACE(kind);
    start({"--no-queues", "--odd-gem", kind});
    ASSERT_NO_FATAL_FAILURE(predump_as("before"));
    EXPECT_TRUE(predumped("before").empty());
    expect_logged("[SL-D62]");
    expect_running();
    EXPECT_EQ(heard("quit"), "ok quit");
  }
}

TEST_P(PreDumpTest, ADirectoryThatCannotBeClearedGetsNone) {
  start({"--no-queues"});
  fs::create_directories(scene_.images() / "amdgpu-kfd-9.img" / "full");
  ASSERT_NO_FATAL_FAILURE(predump_as("before"));
  EXPECT_TRUE(predumped("before").empty());
  EXPECT_TRUE(fs::exists(place("before") / "amdgpu-kfd-9.img" / "full"));
  expect_logged("[SL-D62]");
  expect_running();
}

// It has nothing of its own.
TEST_P(PreDumpTest, ASecondFileOfTheKfdIsInIt) {
  start({"--no-queues", "--second-kfd"});
  ASSERT_NO_FATAL_FAILURE(predump_as("before"));
  EXPECT_TRUE(has_mark("before")) << log_;
  ASSERT_NO_FATAL_FAILURE(dump_as("after", "before"));
  EXPECT_TRUE(is_delta("after")) << log_;
  ASSERT_NO_FATAL_FAILURE(restore_from("after"));
  expect_whole();
}

// As in a container of which sysfs shows the other GPU only.
TEST_P(PreDumpTest, MapsOfAGpuThatCriuDoesNotSeeAreNotOurs) {
  start({"--no-queues"});
  const fs::path hidden = scene_.machine().directory() / "hidden";
  std::ofstream(hidden) << "node 1\n";
  EXPECT_EQ(scene_.start_host(version(), "pre-dump", {}).wait(), 1) << scene_.log();
  std::ofstream(hidden, std::ios::trunc).flush();
  move_to("before");
  EXPECT_TRUE(predumped("before").empty());
  expect_running();
}

// Without the topology nobody knows whose a render node is: its maps are left to CRIU, which refuses them.
TEST_P(PreDumpTest, WhereTheGpusCannotBeSeenNothingIsTouched) {
  start({"--no-queues"});
  const fs::path nodes = scene_.machine().topology() / "nodes";
  fs::rename(nodes, nodes.string() + "-away");
  scene_.control().clear_trace();
  EXPECT_EQ(scene_.start_host(version(), "pre-dump", {}).wait(), 1) << scene_.log();
  fs::rename(nodes.string() + "-away", nodes);
  move_to("before");
  expect_logged("[SL-D62]");
  EXPECT_TRUE(predumped("before").empty());
  EXPECT_EQ(scene_.control().criu_calls(kProcessInfo), 0U);
  expect_running();
}

TEST_P(PreDumpTest, AProcessWithoutAGpuHasNoneAndNothingIsSaid) {
  const std::string ready = scene_.start_subject({"--plain"});
  ASSERT_TRUE(ready.starts_with("ready")) << ready;
  ASSERT_NO_FATAL_FAILURE(predump_as("before"));
  EXPECT_TRUE(predumped("before").empty());
  EXPECT_EQ(log_.find("[SL-D6"), std::string::npos) << log_;
  EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
}

// Without CRIU.
TEST_P(PreDumpTest, TheCommandsIsAParentToo) {
  start({"--no-queues"});
  const auto predump = [this](const std::string& name, const Strings& more = {}) {
    Strings arguments = {(program_directory() / "../../src/cli/sluice").string(), "predump",
                         std::to_string(scene_.subject_pid()), "--images-dir", place(name).string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return scene_.start_program(arguments).wait();
  };
  EXPECT_EQ(predump("first"), 0);
  EXPECT_TRUE(has_mark("first"));
  expect_running();
  EXPECT_EQ(heard("change"), "ok change");
  EXPECT_EQ(predump("second", {"--prev-images-dir", "../first"}), 0);
  EXPECT_FALSE(images_in(place("second"), "amdgpu-predump-delta-").empty());
  // Beside CRIU's own, whose link it has.
  EXPECT_EQ(predump("second", {"--prev-images-dir", "../first", "--replace"}), 0);
  EXPECT_FALSE(images_in(place("second"), "amdgpu-predump-delta-").empty());
  ASSERT_NO_FATAL_FAILURE(dump_as("after", "second"));
  EXPECT_TRUE(is_delta("after")) << log_;
  ASSERT_NO_FATAL_FAILURE(restore_from("after"));
  expect_whole();
  EXPECT_EQ(predump("after"), 3) << "it has the images of a dump";
  EXPECT_TRUE(is_delta("after"));
}

TEST_P(PreDumpTest, AStoppedTaskHasNone) {
  start({"--no-queues"});
  ASSERT_EQ(::kill(scene_.subject_pid(), SIGSTOP), 0);
  while (!is_stopped(scene_.subject_pid())) (void)::sched_yield();
  ASSERT_NO_FATAL_FAILURE(predump_as("before"));
  EXPECT_TRUE(predumped("before").empty());
  if (hooks() >= 12) expect_logged("[SL-D63]");
  ASSERT_EQ(::kill(scene_.subject_pid(), SIGCONT), 0);
  expect_running();
}

class PreDumpCommandTest : public SceneTest {
 protected:
  using Json = nlohmann::json;
  static constexpr int kDone = 0, kFailed = 1, kRefused = 3;

  static std::string sluice() { return (program_directory() / "../../src/cli/sluice").string(); }
  int predump(const std::string& pid, const fs::path& place) {
    return scene_.start_program({sluice(), "predump", pid, "--images-dir", place.string()}).wait();
  }
  // What it says with --json, after checking its status. "message" is empty if it is done.
  Json told(pid_t pid, const fs::path& place, int status, const Strings& more = {}) {
    Strings arguments = {sluice(), "predump", "--json", std::to_string(pid), "--images-dir", place.string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    Program program = scene_.start_program(arguments);
    const Json object = Json::parse(program.hear(), nullptr, false);
    EXPECT_EQ(program.wait(), status) << object;
    EXPECT_EQ(object.value("result", ""), status == kDone      ? "done"
                                          : status == kRefused ? "refused"
                                                               : "failed");
    EXPECT_EQ(object.value("message", "").empty(), status == kDone) << object;
    return object;
  }
  void expect_told(const Json& object, const std::string& id) {
    EXPECT_NE(object.value("message", "").find(id), std::string::npos) << object;
  }
  fs::path place(const std::string& name) const { return scene_.images().parent_path() / name; }
  fs::path new_place(const std::string& name) const {
    fs::create_directory(place(name));
    return place(name);
  }
};

TEST_F(PreDumpCommandTest, AsJsonItTellsWhatItTook) {
  start({"--no-queues"});
  const Json object = told(scene_.subject_pid(), place("before"), kDone);
  EXPECT_EQ(object["command"], "predump");
  EXPECT_EQ(object["pid"], scene_.subject_pid());
  EXPECT_EQ(object["images_dir"], place("before").string());
  EXPECT_GT(object["bytes"], 4 * kMiB);
  EXPECT_GT(object["written_bytes"], 0);
  EXPECT_LE(object["frozen_ns"], object["stopped_ns"]);
  EXPECT_LE(object["stopped_ns"], object["whole_ns"]);
  expect_running();
}

// Nothing of the process is touched.
TEST_F(PreDumpCommandTest, WhatIsNoProcessOfAGpuIsRefused) {
  start({"--no-queues"});
  std::promise<pid_t> id;
  std::promise<void> end;
  std::thread thread([&] {
    id.set_value(::gettid());
    end.get_future().wait();
  });
  expect_told(told(id.get_future().get(), place("before"), kRefused), "[SL-T53]");
  end.set_value();
  thread.join();
  Program idle({"/bin/cat"}, {});
  expect_told(told(idle.pid(), place("before"), kRefused), "[SL-T50]");
  if (::access("/dev/kfd", F_OK) != 0) {
    Program elsewhere({sluice(), "predump", "--json", std::to_string(scene_.subject_pid())}, {});
    expect_told(Json::parse(elsewhere.hear(), nullptr, false), "[SL-T51]");
    EXPECT_EQ(elsewhere.wait(), kRefused);
  }
}

TEST_F(PreDumpCommandTest, DirectoriesThatAreNoneOfItsOwnAreRefused) {
  start({"--no-queues"});
  const pid_t pid = scene_.subject_pid();
  (void)told(pid, place("nowhere") / "below", kRefused);
  std::ofstream(place("file")) << "no directory";
  (void)told(pid, place("file"), kRefused);
  expect_told(told(1 << 30, place("before"), kRefused), "[SL-T52]");
  std::ofstream(new_place("render") / "amdgpu-renderD-1.img") << "of a dump";
  expect_told(told(pid, place("render"), kRefused), "[SL-T54]");
  std::ofstream(new_place("chain") / "amdgpu-delta-kfd-1.img") << "of a dump on a parent";
  expect_told(told(pid, place("chain"), kRefused), "[SL-T54]");
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(new_place("another's").c_str(), 4711, 4711), 0);
    expect_told(told(pid, place("another's"), kRefused), "[SL-T44]");
  }
  // A link to another parent, and what is no link.
  fs::create_directory_symlink("../older", new_place("linked") / "parent");
  expect_told(told(pid, place("linked"), kRefused, {"--prev-images-dir", "../newer"}), "[SL-T45]");
  fs::create_directory(new_place("taken") / "parent");
  expect_told(told(pid, place("taken"), kRefused, {"--prev-images-dir", "../newer"}), "[SL-T45]");
  // No link can be that long.
  (void)told(pid, new_place("long"), kRefused, {"--prev-images-dir", std::string(5000, 'a')});
  for (const char* name : {"file", "render", "linked", "taken", "long"}) {
    if (fs::is_directory(place(name))) {
      EXPECT_TRUE(images_in(place(name), "amdgpu-predump").empty()) << name;
    }
  }
}

TEST_F(PreDumpCommandTest, AFailureLeavesNoFilesAndAProcessThatRuns) {
  start({"--no-queues"});
  const pid_t pid = scene_.subject_pid();
  scene_.variables["SLUICE_CHECKSUM"] = "off";
  expect_told(told(pid, place("before"), kFailed), "[SL-S16]");
  scene_.variables.erase("SLUICE_CHECKSUM");
  const fs::path nodes = scene_.machine().topology() / "nodes";
  const fs::path hidden = scene_.machine().topology() / "hidden";
  fs::rename(nodes, hidden);
  expect_told(told(pid, place("before"), kFailed), "[SL-");
  fs::rename(hidden, nodes);
  // Its own UNPAUSE is refused once: the next one, while the process is still held, is not.
  scene_.control().inject({vamdgpu::On::Kfd, kCriuNr, static_cast<int>(kUnpause), EIO, 1, 1});
  (void)told(pid, place("before"), kFailed);
  scene_.control().clear_faults();
  expect_running();
  EXPECT_TRUE(images_in(place("before"), "amdgpu-predump").empty());
  expect_running();
}

TEST_F(PreDumpCommandTest, ALimitOfFileSizesIsAFailureAndNotItsEnd) {
  start({"--no-queues"});
  const std::string pid = std::to_string(scene_.subject_pid());
  // The log that its output goes to is as large as the limit allows, too.
  const std::string full_log = scene_.images().parent_path() / "full.log";
  const std::string under_limit =
      "head -c 1024 /dev/zero >\"$3\"; ulimit -f 1; "
      "exec \"$0\" predump \"$1\" --images-dir \"$2\" >>\"$3\" 2>&1";
  Program program =
      scene_.start_program({"/bin/sh", "-c", under_limit, sluice(), pid, new_place("before"), full_log});
  EXPECT_EQ(program.wait(), kFailed);
  EXPECT_TRUE(images_in(place("before"), "amdgpu-predump").empty());
  expect_running();
}

TEST_F(PreDumpCommandTest, RefusesWhatItMayNotTouch) {
  start({"--no-queues"});
  const std::string pid = std::to_string(scene_.subject_pid());
  const fs::path open_to_all = scene_.images().parent_path() / "open";
  fs::create_directory(open_to_all);
  fs::permissions(open_to_all, fs::perms::all);
  EXPECT_EQ(predump(pid, open_to_all), kRefused);
  EXPECT_EQ(predump(std::to_string(::getpid()), scene_.images()), kRefused) << "it uses no GPU";
  EXPECT_EQ(predump("1073741824", scene_.images()), kRefused) << "no number of a process";
  // Somebody else traces it.
  Program host = scene_.start_host("4.2", "pre-dump", {"--hold", "seized"});
  ASSERT_EQ(host.hear_control(), "seized");
  EXPECT_EQ(predump(pid, scene_.images()), kRefused);
  host.kill();
  expect_running();
  EXPECT_TRUE(images("amdgpu-").empty());
}

}  // namespace
}  // namespace sluice::plugin_test
