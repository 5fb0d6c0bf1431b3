// SPDX-License-Identifier: MIT
// Other forms of Podman's checkpoint: in two steps, as an image; and a job with `--device` on GPUs with other
// numbers.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "podman_fixture.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kGpuNodesScript[] =
#include "gpu_nodes.inc"
    ;
constexpr const char* kImageOfJob = "localhost/job-checkpoint:1";

void tar(const Strings& arguments) {
  Launch tool;
  tool.arguments = {"tar"};
  tool.arguments.insert(tool.arguments.end(), arguments.begin(), arguments.end());
  ASSERT_EQ(vm_test::run(tool), 0);
}

class PodmanForms : public PodmanScenario {};

// Most memory of CPU and GPUs goes ahead while the job runs. The checkpoint has what has changed since, and a
// restore wants both archives. Unpacked beside each other, they are a chain.
TEST_P(PodmanForms, APreCheckpointComesBackWithTheCheckpointThatFollows) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_job(devices({kFirstGpu, kSecondGpu})));
  const std::string before = data("before.tar"), archive = data("job.tar");
  ASSERT_NO_FATAL_FAILURE(
      expect_good(job_->checkpoint({"--pre-checkpoint", "--export", before, "--compress", "none"})));
  ASSERT_NO_FATAL_FAILURE(expect_job_whole());
  ASSERT_NO_FATAL_FAILURE(
      expect_good(job_->checkpoint({"--with-previous", "--export", archive, "--compress", "none"})));
  EXPECT_FALSE(job_->subject().alive());
  ASSERT_TRUE(job_->remove());
  EXPECT_NE(sluice({"verify", archive}), 0);
  const fs::path folder = images("unpacked");
  for (const std::string& each : {before, archive}) ASSERT_NO_FATAL_FAILURE(tar({"-xf", each, "-C", folder}));
  EXPECT_EQ(sluice({"verify", folder / "checkpoint"}), 0);
  fs::remove(folder / "pre-checkpoint" / "amdgpu-predump.img");
  EXPECT_NE(sluice({"verify", folder / "checkpoint"}), 0);
  ASSERT_NO_FATAL_FAILURE(expect_failed(job_->restore({"--import", archive})));
  ASSERT_TRUE(job_->remove());
  ASSERT_NO_FATAL_FAILURE(expect_good(job_->restore({"--import-previous", before, "--import", archive})));
  ASSERT_NO_FATAL_FAILURE(expect_job_whole());
  EXPECT_TRUE(job_->quit());
}

INSTANTIATE_TEST_SUITE_P(OfEngines, PodmanForms, testing::Values("runc"), runtime_of);
INSTANTIATE_TEST_SUITE_P(MoreOfEngines, PodmanForms, testing::Values("crun"), runtime_of);

// ---- an image

class PodmanImage : public PodmanScenario {};

// The checkpoint is an image in the local store. Podman notes in it which runtime it takes itself by default,
// not the container's, and refuses another one at the restore.
TEST_P(PodmanImage, OfACheckpointComesBack) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_job(devices({kFirstGpu, kSecondGpu})));
  podman_->use_runtime(GetParam());
  podman_->be_patient(Seconds(900));  // Podman packs the image, on a processor that is emulated
  ASSERT_NO_FATAL_FAILURE(expect_good(job_->checkpoint({"--create-image", kImageOfJob})));
  EXPECT_FALSE(job_->subject().alive());
  ASSERT_TRUE(job_->remove());
  ASSERT_NO_FATAL_FAILURE(expect_good(job_->restore({kImageOfJob})));
  ASSERT_NO_FATAL_FAILURE(expect_job_whole());
  EXPECT_TRUE(job_->quit());
  ASSERT_TRUE(job_->remove());
  EXPECT_EQ(podman_->run({"rmi", kImageOfJob}).status, 0);
}

INSTANTIATE_TEST_SUITE_P(MoreOfEngines, PodmanImage, testing::Values("runc"), runtime_of);

// ---- other numbers

// The render node of a GPU here.
std::string node_of(std::uint32_t gpu_id) {
  for (const fs::directory_entry& node : fs::directory_iterator("/sys/class/kfd/kfd/topology/nodes")) {
    if (std::strtoul(read_file(node.path() / "gpu_id").c_str(), nullptr, 10) != gpu_id) continue;
    std::istringstream lines(read_file(node.path() / "properties"));
    std::string key;
    for (std::uint64_t value = 0; lines >> key >> value;) {
      if (key == "drm_render_minor") return "/dev/dri/renderD" + std::to_string(value);
    }
  }
  throw std::runtime_error("no node of the GPU with gpu_id " + std::to_string(gpu_id));
}

// Its archive is unpacked, changed and packed again, as docs/user/podman.md does it by hand.
class PodmanOtherNumbers : public PodmanScenario {
 protected:
  void SetUp() override {
    PodmanScenario::SetUp();
    if (IsSkipped()) return;
    const fs::path script = scratch() / "gpu-nodes";
    write_file(script, kGpuNodesScript);
    fs::permissions(script, fs::perms::owner_all);
    fs::create_directories(kConfiguration.parent_path());
    write_file(kConfiguration, "action-script " + script.string() + "\n");
  }
  void TearDown() override {
    std::error_code none;
    fs::remove(kConfiguration, none);
    PodmanScenario::TearDown();
  }

  // The specification in `archive` names another GPU's node in place of `node`.
  void give_other_gpu(const fs::path& archive, const std::string& node, const std::string& other) {
    const fs::path folder = images("unpacked");
    tar({"-xf", archive, "-C", folder});
    json specification = json::parse(read_file(folder / "spec.dump"));
    json& container = specification["linux"];
    const auto from = std::stoul(node.substr(node.rfind('D') + 1));
    const auto to = std::stoul(other.substr(other.rfind('D') + 1));
    for (json* const list : {&container["devices"], &container["resources"]["devices"]}) {
      for (json& device : *list) {
        if (device.value("minor", -1L) != static_cast<long>(from)) continue;
        device["minor"] = to;
        if (device.contains("path")) device["path"] = other;
      }
    }
    write_file(folder / "spec.dump", specification.dump());
    fs::remove(archive);
    tar({"-cf", archive, "-C", folder, "."});
  }

 private:
  inline static const fs::path kConfiguration = "/etc/criu/runc.conf";
};

// The new specification decides, so the script alone does not help: Podman's has the numbers of the dump.
TEST_P(PodmanOtherNumbers, TheActionScriptGivesTheGpuThatTheArchivesSpecificationNames) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_job(devices({kFirstGpu})));
  ASSERT_NO_FATAL_FAILURE(move_into(data("job.tar")));
  ASSERT_NO_FATAL_FAILURE(move_to({.machine = 1}));
  ASSERT_NO_FATAL_FAILURE(expect_failed(job_->restore({"--import", data("job.tar")})));
  ASSERT_TRUE(job_->remove());
  ASSERT_NO_FATAL_FAILURE(give_other_gpu(data("job.tar"), kFirstGpu, node_of(machine().gpu_ids().back())));
  ASSERT_NO_FATAL_FAILURE(restore_from(data("job.tar")));
  expect_gpus(1);
  expect_memory_on(machine().gpu_ids().back());
  EXPECT_TRUE(job_->quit());
}

INSTANTIATE_TEST_SUITE_P(OfEngines, PodmanOtherNumbers, testing::Values("runc"), runtime_of);

}  // namespace
}  // namespace sluice::vm_test
