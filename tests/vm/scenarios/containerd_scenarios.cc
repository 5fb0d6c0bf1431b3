// SPDX-License-Identifier: MIT
// A job in a container of containerd, by its own command (ctr): a checkpoint that is an image in its store,
// and the container made anew from that.
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "daemon.h"
#include "podman.h"
#include "scenario.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCheckpointImage = "localhost/job-checkpoint:1";
constexpr const char* kControlInContainer = "/control";

const fs::path kState = "/run/containerd";

class Containerd : public Scenario {
 protected:
  void SetUp() override {
    Scenario::SetUp();
    if (!fs::exists("/usr/bin/containerd")) GTEST_SKIP() << "this suite's guest has no containerd";
    load();
    start_service();
    subject_.emplace(scratch() / "job", kControlInContainer);
  }
  void TearDown() override {
    if (service_ && subject_) {
      subject_->kill();
      (void)ctr({"tasks", "rm", "--force", "job"});
      (void)ctr({"containers", "rm", "job"});
    }
    subject_.reset();
    service_.reset();
    (void)eventually([] { return living_children().empty(); });
    Scenario::TearDown();
  }

  // With a store of its own on the disk of the images.
  void start_service() {
    const fs::path store = images("containerd");
    fs::create_directories(store / "tmp");
    const fs::path socket = kState / "containerd.sock";
    Launch launch;
    launch.arguments = {"containerd", "--root", store / "root", "--state", kState, "--address", socket};
    launch.environment = {{"TMPDIR", store / "tmp"}};
    launch.output = new_log("containerd");
    service_.emplace(launch, socket);
  }
  // Of the job.
  static pid_t pid() {
    return std::atoi(
        read_file(kState / "io.containerd.runtime.v2.task" / "default" / "job" / "init.pid").c_str());
  }

  fs::path new_log(const std::string& name) {
    fs::create_directories(criu_->logs());
    return criu_->logs() / (name + "-" + std::to_string(++logs_) + ".log");
  }

  std::optional<int> ctr(const Strings& arguments) {
    Launch launch;
    launch.arguments = {"ctr", "--address", service_->socket()};
    launch.arguments.insert(launch.arguments.end(), arguments.begin(), arguments.end());
    launch.environment = {{"TMPDIR", images("containerd") / "tmp"}};
    launch.output = new_log("ctr");
    // containerd hashes and packs a checkpoint and the files next to it, on an emulated processor.
    return run(launch, Seconds(600));
  }

  // The job's image, which Podman has made.
  void import_image() {
    Podman podman(criu_->logs());
    const fs::path archive = images("data") / "image.tar";
    const Podman::Said said = podman.run({"save", "--quiet", "--output", archive, kJobImage});
    ASSERT_EQ(said.status, 0) << said.text;
    ASSERT_EQ(ctr({"images", "import", archive}), 0);
  }

  void start_job() {
    Strings words = {"run",
                     "--detach",
                     "--device",
                     "/dev/kfd",
                     "--device",
                     "/dev/dri/renderD128",
                     "--device",
                     "/dev/dri/renderD129",
                     "--mount",
                     "type=bind,src=" + subject_->directory().string() + ",dst=" + kControlInContainer +
                         ",options=rbind:rw",
                     kJobImage,
                     "job",
                     settings().programs / "gpu-subject",
                     "--control",
                     kControlInContainer};
    const Strings options =
        with_common_options({"--gpus", "0", "--vram", "8M", "--gtt", "2M", "--run-queues"});
    words.insert(words.end(), options.begin(), options.end());
    ASSERT_EQ(ctr(words), 0);
    subject_->adopt(pid());
    const std::string ready = subject_->hear();
    ASSERT_EQ(ready.rfind("ready", 0), 0U) << "the subject said: " << ready;
  }

  void expect_job_whole() {
    ASSERT_NO_FATAL_FAILURE(expect_queues_run());
    ASSERT_NO_FATAL_FAILURE(expect_whole());
  }

  std::optional<Daemon> service_;

 private:
  unsigned logs_ = 0;
};

TEST_F(Containerd, AContainerIsMadeAnewFromItsCheckpoint) {
  ASSERT_NO_FATAL_FAILURE(import_image());
  ASSERT_NO_FATAL_FAILURE(start_job());
  ASSERT_EQ(ctr({"containers", "checkpoint", "--rw", "--task", "--image", "job", kCheckpointImage}), 0);
  ASSERT_NO_FATAL_FAILURE(expect_job_whole());
  const fs::path exported = images("data") / "checkpoint.tar";
  // ctr would make a file for Docker, too, of a configuration that a checkpoint does not have.
  ASSERT_EQ(ctr({"images", "export", "--skip-manifest-json", exported, kCheckpointImage}), 0);
  Launch tool;
  tool.arguments = {(settings().programs / "sluice").string(), "verify", exported};
  tool.output = "/dev/console";
  EXPECT_EQ(run(tool), 0);

  (void)ctr({"tasks", "rm", "--force", "job"});  // its status is the job's
  ASSERT_FALSE(subject_->alive());
  ASSERT_EQ(ctr({"containers", "rm", "job"}), 0);
  // As on another machine, which has the job's image, and of the checkpoint only the file.
  ASSERT_EQ(ctr({"images", "rm", "--sync", kCheckpointImage}), 0);
  // A checkpoint has no layers that ctr could unpack.
  ASSERT_EQ(ctr({"images", "import", "--no-unpack", exported}), 0);
  ASSERT_EQ(ctr({"containers", "restore", "--rw", "--live", "job", kCheckpointImage}), 0);
  subject_->adopt(pid());
  ASSERT_NO_FATAL_FAILURE(expect_job_whole());
}

}  // namespace
}  // namespace sluice::vm_test
