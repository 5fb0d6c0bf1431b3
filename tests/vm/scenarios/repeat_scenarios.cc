// SPDX-License-Identifier: MIT
// Dumps of a process that runs on, and of one that was itself restored.
#include "scenario.h"

namespace sluice::vm_test {
namespace {

constexpr int kDumps = 20;

class Repeated : public Scenario {};

TEST_F(Repeated, TwentyDumpsInARowLeaveTheProcessRunning) {
  load();
  ASSERT_NO_FATAL_FAILURE(
      start_subject({"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--run-queues", "--svm"}));
  for (int i = 0; i < kDumps; ++i) {
    SCOPED_TRACE("dump " + std::to_string(i + 1));
    const CriuRun run = criu_->dump(subject_->pid(), images(), {"--leave-running"});
    ASSERT_TRUE(run.good());
    ASSERT_NO_FATAL_FAILURE(expect_queues_run());
    ASSERT_NO_FATAL_FAILURE(expect_whole());
  }
  // The last of them is an image like any other.
  const pid_t pid = subject_->pid();
  subject_->kill();
  ASSERT_NO_FATAL_FAILURE(restore());
  subject_->adopt(pid);
  ASSERT_NO_FATAL_FAILURE(expect_whole());
}

TEST_F(Repeated, ThreeDumpsEachOnTheOneBeforeComeBackWhole) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject({"--gpus", "2", "--vram", "8M", "--gtt", "1M", "--run-queues"}));
  ASSERT_NO_FATAL_FAILURE(dump_chain());
  ASSERT_NO_FATAL_FAILURE(restore());
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(subject_->quit(), 0);
}

TEST_F(Repeated, ProcessThatWasRestoredIsDumpedAndRestoredAgain) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject(everything()));
  for (int generation = 1; generation <= 3; ++generation) {
    SCOPED_TRACE("generation " + std::to_string(generation));
    const CriuRun dumped =
        criu_->dump(subject_->pid(), images("generation-" + std::to_string(generation)), {"--link-remap"});
    ASSERT_TRUE(dumped.good());
    ASSERT_TRUE(subject_->reap_dumped());
    ASSERT_TRUE(criu_->restore(images("generation-" + std::to_string(generation))).good());
    ASSERT_NO_FATAL_FAILURE(expect_queues_run());
    ASSERT_NO_FATAL_FAILURE(expect_whole());
  }
  EXPECT_EQ(subject_->quit(), 0);
}

}  // namespace
}  // namespace sluice::vm_test
