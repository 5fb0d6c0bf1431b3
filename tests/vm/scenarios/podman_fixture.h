// SPDX-License-Identifier: MIT
// What the scenarios of Podman have in common: one job in one container, with a runtime that is the
// scenario's parameter, and what is asked of it. Podman's container and what it has started go at the end.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "oci_container.h"
#include "podman.h"
#include "scenario.h"

namespace sluice::vm_test {

// Nodes of the first two GPUs of machine 0.
inline const std::string kFirstGpu = "/dev/dri/renderD128", kSecondGpu = "/dev/dri/renderD129";

class PodmanScenario : public Scenario, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    Scenario::SetUp();
    if (!Podman::there()) GTEST_SKIP() << "this suite's guest has no Podman";
    if (!has_runtime(GetParam())) GTEST_SKIP() << "this suite's guest has no " << GetParam();
    podman_.emplace(criu_->logs());
  }
  void TearDown() override {
    job_.reset();
    // What Podman starts after a container ends by itself.
    (void)eventually([] { return living_children().empty(); });
    podman_.reset();
    Scenario::TearDown();
  }

  static Strings devices(const Strings& nodes) {
    Strings options = {"--device", "/dev/kfd"};
    for (const std::string& node : nodes) options.insert(options.end(), {"--device", node});
    return options;
  }

  // `place`: its network, or its pod.
  void start_job(const Strings& gpu_options, const Strings& place = {"--network", "none"}) {
    job_.emplace(*podman_, "job", scratch() / "job");
    Strings options = {"--runtime", GetParam()};
    options.insert(options.end(), place.begin(), place.end());
    options.insert(options.end(), gpu_options.begin(), gpu_options.end());
    const std::string ready = job_->run(
        options, with_common_options({"--gpus", "0", "--vram", "8M", "--gtt", "2M", "--run-queues"}));
    ASSERT_EQ(ready.rfind("ready", 0), 0U) << "the subject said: " << ready;
  }

  void expect_job_whole() {
    ASSERT_TRUE(job_->subject().alive());
    for (const std::string command : {"check", "queue-progress", "work", "check"}) {
      const std::string answer = job_->subject().ask(command);
      ASSERT_EQ(answer.rfind("ok " + command, 0), 0U) << answer;
    }
  }

  void expect_gpus(std::size_t number) {
    const auto process = machine().process(job_->pid());
    ASSERT_TRUE(process.has_value());
    EXPECT_EQ(process->gpu_ids.size(), number);
  }

  // All of its VRAM is on this GPU.
  void expect_memory_on(std::uint32_t gpu_id) {
    const auto process = machine().process(job_->pid());
    ASSERT_TRUE(process.has_value());
    EXPECT_EQ(process->gpus_with_vram(), std::set{gpu_id});
  }

  static void expect_good(const CriuRun& run) {
    ASSERT_TRUE(run.good()) << "podman ended with " << run.status.value_or(-1) << ":\n" << run.log;
  }
  static void expect_failed(const CriuRun& run) {
    ASSERT_TRUE(run.status.has_value()) << "podman hangs";
    EXPECT_NE(run.status, 0);
  }

  // Where archives go.
  std::filesystem::path data(const std::string& archive) const { return images("data") / archive; }

  // A checkpoint into an archive that is not compressed; the container goes.
  void move_into(const std::filesystem::path& archive) {
    ASSERT_NO_FATAL_FAILURE(
        expect_good(job_->checkpoint({"--export", archive.string(), "--compress", "none"})));
    EXPECT_FALSE(job_->subject().alive());
    ASSERT_TRUE(job_->remove());
  }
  void restore_from(const std::filesystem::path& archive) {
    ASSERT_NO_FATAL_FAILURE(expect_good(job_->restore({"--import", archive.string()})));
    ASSERT_NO_FATAL_FAILURE(expect_job_whole());
  }

  // The `sluice` command's exit status.
  static std::optional<int> sluice(const Strings& arguments) {
    Launch tool;
    tool.arguments = {(settings().programs / "sluice").string()};
    tool.arguments.insert(tool.arguments.end(), arguments.begin(), arguments.end());
    tool.output = "/dev/console";
    return vm_test::run(tool);
  }

  std::optional<Podman> podman_;
  std::optional<PodmanJob> job_;
};

// For INSTANTIATE_TEST_SUITE_P: a runtime is its own name.
inline std::string runtime_of(const testing::TestParamInfo<const char*>& info) {
  return info.param;
}

}  // namespace sluice::vm_test
