// SPDX-License-Identifier: MIT
// Other forms of Podman's checkpoint: in two steps, as an image, from one pod into another; and a job with
// `--device` on GPUs with other numbers.
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
// restore wants both archives. Unpacked side by side, they are a chain.
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

// ---- pods

class PodmanPod : public PodmanScenario {
 protected:
  void SetUp() override {
    PodmanScenario::SetUp();
    // Its device rules of the pod's cgroup deny the infra container /dev/null.
    if (settings().suite == "bookworm-engines") GTEST_SKIP() << "Podman 4.3 starts no pod without systemd";
  }
  void TearDown() override {
    job_.reset();
    if (podman_) (void)podman_->run({"pod", "rm", "--force", "--ignore", "--time", "0", "first", "second"});
    PodmanScenario::TearDown();
  }

  // With an infra container, which has the pod's namespaces.
  void make_pod(const std::string& name) {
    const Podman::Said said = podman_->run({"pod", "create", "--name", name, "--network", "none"});
    ASSERT_EQ(said.status, 0) << said.text;
  }
};

// The job's pod goes, and the archive is restored into another one.
TEST_P(PodmanPod, AContainerComesBackInAnotherPod) {
  load();
  podman_->use_runtime(GetParam());
  ASSERT_NO_FATAL_FAILURE(make_pod("first"));
  ASSERT_NO_FATAL_FAILURE(start_job(devices({kFirstGpu, kSecondGpu}), {"--pod", "first"}));
  ASSERT_NO_FATAL_FAILURE(move_into(data("job.tar")));
  const Podman::Said said = podman_->run({"pod", "rm", "--force", "--time", "0", "first"});
  ASSERT_EQ(said.status, 0) << said.text;
  ASSERT_NO_FATAL_FAILURE(make_pod("second"));
  ASSERT_NO_FATAL_FAILURE(
      expect_good(job_->restore({"--pod", "second", "--import", data("job.tar").string()})));
  ASSERT_NO_FATAL_FAILURE(expect_job_whole());
  EXPECT_TRUE(job_->quit());
}

INSTANTIATE_TEST_SUITE_P(OfEngines, PodmanPod, testing::Values("runc"), runtime_of);
INSTANTIATE_TEST_SUITE_P(MoreOfEngines, PodmanPod, testing::Values("crun"), runtime_of);

// ---- a user namespace

class PodmanUserNamespace : public PodmanScenario {
 protected:
  // The job is not the machine's root.
  static void let_others_open(const std::vector<fs::path>& files) {
    for (const fs::path& file : files) fs::permissions(file, fs::perms::all);
  }

  void start_job_in_user_namespace() {
    let_others_open({"/dev/kfd", kFirstGpu, kSecondGpu});
    job_.emplace(*podman_, "job", scratch() / "job");
    const fs::path control = job_->subject().directory();
    let_others_open({control, control / "in", control / "out"});
    Strings options = devices({kFirstGpu, kSecondGpu});
    options.insert(options.end(),
                   {"--runtime", GetParam(), "--network", "none", "--uidmap", "0:100000:65536"});
    const std::string ready =
        job_->run(options, with_common_options({"--gpus", "0", "--vram", "8M", "--run-queues"}));
    ASSERT_EQ(ready.rfind("ready", 0), 0U) << "the subject said: " << ready;
  }
};

// crun binds each node of /dev, and CRIU cannot dump such a mount. With runc the dump works. At
// the restore CRIU opens images as the job's root, who may not read them.
TEST_P(PodmanUserNamespace, AJobInOneIsNotRestored) {
  load();
  ASSERT_NO_FATAL_FAILURE(start_job_in_user_namespace());
  const std::string archive = data("job.tar");
  const CriuRun dump = job_->checkpoint({"--export", archive, "--compress", "none"});
  if (GetParam() == std::string("crun")) {
    ASSERT_NO_FATAL_FAILURE(expect_failed(dump));
    ASSERT_NO_FATAL_FAILURE(expect_job_whole());
    return;
  }
  ASSERT_NO_FATAL_FAILURE(expect_good(dump));
  ASSERT_TRUE(job_->remove());
  EXPECT_EQ(sluice({"verify", archive}), 0);
  job_->subject().say("check");
  ASSERT_NO_FATAL_FAILURE(expect_failed(job_->restore({"--import", archive})));
  EXPECT_FALSE(job_->subject().has_spoken()) << "the job ran";
}

INSTANTIATE_TEST_SUITE_P(OfEngines, PodmanUserNamespace, testing::Values("runc", "crun"), runtime_of);

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
    if (!takes_action_script()) GTEST_SKIP() << "this criu runs no script of a configuration file";
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
