// SPDX-License-Identifier: MIT
// The virtual GPUs themselves, in a kernel: what stands beneath all other scenarios.
#include "scenario.h"

namespace sluice::vm_test {
namespace {

class Module : public Scenario {};

// The thread that runs queues knows them to the last, and the process that they belong to lives on.
TEST_F(Module, UnloadsBesideAProcessThatLeftItsQueuesBehind) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_subject({"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--run-queues"}));
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_EQ(subject_->ask("leave"), "ok leave");
  const auto process = control().process(subject_->pid());
  ASSERT_TRUE(process.has_value());
  EXPECT_TRUE(process->queues_run());
  ASSERT_TRUE(machine_.unload());
  EXPECT_TRUE(subject_->alive());
  EXPECT_EQ(subject_->quit(), 0);
}

}  // namespace
}  // namespace sluice::vm_test
