// SPDX-License-Identifier: MIT
// A pre-dump takes no memory that the job may need: it never holds more than is free, and gives back what the
// job frees, or others take.
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "images_in_memory.h"
#include "lookalike/task_tree.h"
#include "plugin_test.h"

namespace sluice::plugin_test {
namespace {

using lookalike::TaskTree;

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kDone = 0;
// Copies stop after the first chunk.
constexpr const char* kStandingStill = "1";

vamdgpu::MachineOptions machine_with(std::uint64_t vram_bytes) {
  vamdgpu::MachineOptions options = small_machine(1);
  options.vram_bytes = vram_bytes;
  return options;
}

class PreDumpMemoryTest : private ImagesInMemory, public SceneTest {
 protected:
  explicit PreDumpMemoryTest(std::uint64_t vram_bytes = 12 * kMiB)
      : SceneTest(machine_with(vram_bytes), images_in_memory()) {}

  // CRIU's part of it is held.
  Program begin_predump(const char* rate = kStandingStill) {
    scene_.variables["SLUICE_PREDUMP_RATE"] = rate;
    Program host = scene_.start_host("4.2", "pre-dump", {"--hold", "cpu_pages"});
    EXPECT_EQ(host.hear_control(), "cpu_pages") << scene_.log();
    scene_.variables.erase("SLUICE_PREDUMP_RATE");
    return host;
  }
  Json command(int status, const Strings& more = {}) {
    Strings arguments = {(program_directory() / "../../src/cli/sluice").string(),
                         "predump",
                         "--json",
                         std::to_string(scene_.subject_pid()),
                         "--images-dir",
                         place("before").string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    Program program = scene_.start_program(arguments);
    const Json object = Json::parse(program.hear(), nullptr, false);
    EXPECT_EQ(program.wait(), status) << object;
    return object;
  }
  fs::path place(const std::string& name) const { return scene_.images().parent_path() / name; }
  void expect_whole_after_a_dump_on_it() {
    ASSERT_EQ(scene_.dump("4.2", {"--prev-images-dir", "../before"}), 0) << scene_.log();
    scene_.wait_until_subject_is_gone();
    overwrite_gpu_memory();
    ASSERT_NO_FATAL_FAILURE(restore_and_check_with("4.2"));
  }
  std::uint64_t skipped_by_criu() const {
    std::uint64_t bytes = 0;
    for (const std::string& name : images_in(place("before"), "sluice-stats-predump-"))
      bytes += Json::parse(read_file(place("before") / name), nullptr, false).value("skipped_bytes", 0U);
    return bytes;
  }
};

class PreDumpOfMoreThanHalfTest : public PreDumpMemoryTest {
 protected:
  PreDumpOfMoreThanHalfTest() : PreDumpMemoryTest(64 * kMiB) {}
};

// With all of it held, the largest BO would find no place.
TEST_F(PreDumpOfMoreThanHalfTest, AJobReplacesWhatItHas) {
  start({"--no-queues", "--vram", "40M"});
  Program host = begin_predump();
  for (int i = 0; i < 40; ++i) ASSERT_EQ(heard("replace"), "ok replace") << i;
  host.kill();
  expect_running();
}

TEST_F(PreDumpMemoryTest, OnAFullGpuTheCommandCopiesInShares) {
  start({"--no-queues", "--vram", "9M", "--bos", "small"});
  const Json object = command(kDone);
  EXPECT_GE(object.value("stops", 0), 3) << object;
  EXPECT_EQ(object.value("skipped_bytes", 1), 0) << object;
  EXPECT_GE(object.value("stopped_ns", 0U), object.value("frozen_ns", 1U));
  expect_running();
  ASSERT_NO_FATAL_FAILURE(expect_whole_after_a_dump_on_it());
  EXPECT_FALSE(images("amdgpu-delta-").empty());
}

TEST_F(PreDumpMemoryTest, OnAFullGpuCriusCopiesOneShareAndSaysWhatIsLeft) {
  start({"--no-queues", "--vram", "9M", "--bos", "small"});
  EXPECT_EQ(scene_.start_host("4.2", "pre-dump", {}).wait(), 0) << scene_.log();
  EXPECT_TRUE(scene_.has_logged("[SL-D65]"));
  fs::rename(scene_.images(), place("before"));
  EXPECT_GT(skipped_by_criu(), 5 * kMiB);
  expect_running();
  ASSERT_NO_FATAL_FAILURE(expect_whole_after_a_dump_on_it());
  EXPECT_FALSE(images("amdgpu-delta-").empty());
}

// It has not to be asked for again: the dump writes it.
TEST_F(PreDumpMemoryTest, ABoThatIsLargerThanWhatIsFreeIsSkipped) {
  start({"--no-queues", "--vram", "8M", "--bos", "huge"});
  const Json object = command(kDone);
  EXPECT_EQ(object.value("skipped_bytes", 0U), 8 * kMiB) << object;
  ASSERT_NO_FATAL_FAILURE(expect_whole_after_a_dump_on_it());
}

TEST_F(PreDumpMemoryTest, WhereTheProcessesCannotBeStoppedAgainTheRestIsLeftToTheDump) {
  start({"--no-queues", "--vram", "9M", "--bos", "small"});
  for (const std::uint32_t operation : {kProcessInfo, kUnpause}) {
    SCOPED_TRACE(operation);
    // The first UNPAUSE asks for an older dump's pause, before each PROCESS_INFO.
    const unsigned first = operation == kProcessInfo ? 2 : 4;
    scene_.control().inject({vamdgpu::On::Kfd, kCriuNr, static_cast<int>(operation), EIO, first, 1});
    const Json object = command(kDone, {"--replace"});
    scene_.control().clear_faults();
    EXPECT_GT(object.value("skipped_bytes", 0U), 0U) << object;
    expect_running();
  }
  ASSERT_NO_FATAL_FAILURE(expect_whole_after_a_dump_on_it());
}

// The KFD tells its VRAM, and nobody its GTT.
TEST_F(PreDumpMemoryTest, OfAPartitionOnlyVramIsHeld) {
  start({"--no-queues"});
  fs::path device;
  for (const auto& entry : fs::recursive_directory_iterator(scene_.machine().directory())) {
    if (entry.path().filename() == "mem_info_vram_total") device = entry.path().parent_path();
  }
  ASSERT_FALSE(device.empty());
  std::ofstream(device / "current_compute_partition") << "CPX\n";
  const Json object = command(kDone);
  EXPECT_GT(object.value("bytes", 0U), 4 * kMiB);
  EXPECT_GT(object["skipped_bytes"], 0U);
  EXPECT_LT(object["skipped_bytes"], object["bytes"]);
  ASSERT_NO_FATAL_FAILURE(expect_whole_after_a_dump_on_it());
}

TEST_F(PreDumpMemoryTest, WhatIsFreedWhileItIsCopiedIsFree) {
  start({"--no-queues", "--vram", "3M", "--bos", "small"});
  const std::uint64_t before = scene_.control().counts().vram_bytes;
  Program host = begin_predump();
  for (int i = 0; i < 15; ++i) ASSERT_EQ(heard("replace"), "ok replace") << i;
  while (scene_.control().counts().vram_bytes > before) (void)::sched_yield();
  host.kill();
  expect_running();
}

TEST_F(PreDumpMemoryTest, WhenOthersTakeMemoryItIsGivenBack) {
  start({"--no-queues", "--vram", "4M", "--bos", "small"});
  const std::uint32_t before = scene_.control().counts().dma_bufs;
  Program host = begin_predump();
  const std::uint32_t held = scene_.control().counts().dma_bufs;
  ASSERT_GT(held, before + 10);
  TaskTree others(scene_);
  const std::string ready = others.add({"--no-queues", "--vram", "7M", "--gtt", "1M"});
  ASSERT_TRUE(ready.starts_with("ready")) << ready;
  while (scene_.control().counts().dma_bufs > before + (held - before) / 2) (void)::sched_yield();
  for (int i = 0; i < 10; ++i) ASSERT_EQ(heard("replace"), "ok replace") << i;
  host.kill();
  expect_queues_run(scene_.subject_pid());
  EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
}

}  // namespace
}  // namespace sluice::plugin_test
