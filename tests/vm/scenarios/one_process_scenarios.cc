// SPDX-License-Identifier: MIT
// One process on two GPUs with all that a ROCm process has: VRAM, GTT, userptr, doorbell and MMIO BOs, SVM
// ranges, CPU maps, and libhsakmt's shared memory file. It has events of every kind, a thread that waits for
// one, and compute and SDMA queues with work before and after.
#include <sys/stat.h>

#include <filesystem>

#include "scenario.h"

namespace sluice::vm_test {
namespace {

// The thunk's semaphore was made under another name and linked to its own, as sem_open() does.
const Strings kLinkRemap = {"--link-remap"};

class OneProcessTwoGpus : public Scenario {};

TEST_F(OneProcessTwoGpus, ComesBackWholeAndWorksOn) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject({"--gpus", "2", "--vram", "24M", "--gtt", "4M"}));
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  ASSERT_NO_FATAL_FAILURE(expect_survives());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(OneProcessTwoGpus, WithEverythingAtOnceComesBackWholeAndWorksOn) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(everything()));
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  ASSERT_NO_FATAL_FAILURE(expect_survives(kLinkRemap));
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(OneProcessTwoGpus, WhoseFilesCannotBeTakenIsNotDumpedAndRunsOn) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(everything()));
  criu_->prepare = take_no_descriptors;
  EXPECT_FALSE(criu_->dump(subject_->pid(), images(), kLinkRemap).good());
  EXPECT_TRUE(criu_->last_run().plugin_said("[SL-D20]"));
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(OneProcessTwoGpus, QueuesConsumePacketsBeforeAndAfter) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject({"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--run-queues"}));
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(restore());
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(OneProcessTwoGpus, SharedMemoryFileOfTheThunkIsMadeAgainWhereItIsMissing) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject({"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--hsakmt-shm"}));
  ASSERT_TRUE(std::filesystem::exists("/dev/shm/hsakmt_shared_mem"));
  ASSERT_NO_FATAL_FAILURE(dump(kLinkRemap));
  // The restored process runs on a machine that was started afresh.
  std::filesystem::remove("/dev/shm/hsakmt_shared_mem");
  std::filesystem::remove("/dev/shm/sem.hsakmt_semaphore");
  ASSERT_NO_FATAL_FAILURE(restore());
  EXPECT_TRUE(std::filesystem::exists("/dev/shm/hsakmt_shared_mem"));
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

// As an inference engine's sleep before a checkpoint: CRIU's script asks the process for it, and waits.
TEST_F(OneProcessTwoGpus, WhatItGivesBackWhenTheActionScriptAsksIsNotInTheImages) {
  load();
  const std::filesystem::path told = scratch() / "told", script = scratch() / "sleep";
  ASSERT_EQ(::mkfifo(told.c_str(), 0600), 0);
  ASSERT_NO_FATAL_FAILURE(start_subject({"--gpus", "2", "--vram", "2M", "--gtt", "1M", "--no-queues",
                                         "--cache", "2M", "--cache-told", told.string()}));
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  const long before = number_in(subject_->ask("check"), "bytes");
  write_file(script,
             "#!/bin/sh\n"
             "[ \"$CRTOOLS_SCRIPT_ACTION\" = pre-dump ] || exit 0\n"
             "kill -USR1 \"$CRTOOLS_INIT_PID\" && read -r line <" +
                 told.string() + " && [ \"$line\" = dropped ]\n");
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  ASSERT_NO_FATAL_FAILURE(dump({"--action-script", script.string()}));
  std::uintmax_t pages = 0;
  for (const auto& image : std::filesystem::directory_iterator(images())) {
    if (image.path().filename().string().starts_with("amdgpu-pages-")) pages += image.file_size();
  }
  EXPECT_GT(pages, 0U);
  EXPECT_LT(pages, static_cast<std::uintmax_t>(before) - (3U << 20));
  ASSERT_NO_FATAL_FAILURE(restore());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(before - number_in(subject_->ask("check"), "bytes"), 4L << 20);
  EXPECT_EQ(subject_->quit(), 0);
}

}  // namespace
}  // namespace sluice::vm_test
