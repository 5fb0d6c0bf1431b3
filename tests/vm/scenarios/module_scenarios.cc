// SPDX-License-Identifier: MIT
// The virtual GPUs themselves, in a kernel: what stands beneath all other scenarios.
#include <iostream>

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
  ASSERT_TRUE(machine().unload());
  EXPECT_TRUE(subject_->alive());
  EXPECT_EQ(subject_->quit(), 0);
}

// Its own device tests, which run in user space, too (tests/vamdgpu/tests).
class DeviceTests : public Scenario, public testing::WithParamInterface<std::string> {};

TEST_P(DeviceTests, Pass) {
  load();
  Launch tests;
  tests.arguments = {(settings().programs / ("vamdgpu_" + GetParam() + "_device_test")).string()};
  tests.output = scratch() / "tests.log";
  EXPECT_EQ(run(tests), 0);
  const std::string said = read_file(tests.output);
  // What the user-space front cannot show is shown here.
  EXPECT_TRUE(GetParam() != "kernel" || said.find("SKIPPED") == std::string::npos);
  if (HasFailure()) std::cout << said << std::flush;
}

INSTANTIATE_TEST_SUITE_P(OnTheModule, DeviceTests, testing::Values("criu", "drm", "kernel", "kfd", "system"),
                         [](const testing::TestParamInfo<std::string>& test) { return test.param; });

}  // namespace
}  // namespace sluice::vm_test
