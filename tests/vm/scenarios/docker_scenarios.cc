// SPDX-License-Identifier: MIT
// A job in a container of Docker: its experimental checkpoint, and the container started from that.
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "daemon.h"
#include "podman.h"
#include "scenario.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFifosInside = "/control";
const fs::path kEngineState = "/run/docker-containerd";

class Docker : public Scenario {
 protected:
  void SetUp() override {
    Scenario::SetUp();
    if (!fs::exists("/usr/sbin/dockerd")) GTEST_SKIP() << "this suite's guest has no Docker";
    load();
    start_service();
    subject_.emplace(scratch() / "job", kFifosInside);
  }
  void TearDown() override {
    if (service_) (void)docker({"rm", "--force", "job"});
    if (subject_) subject_->forget();
    subject_.reset();
    service_.reset();
    containerd_.reset();
    (void)eventually([] { return living_children().empty(); });
    Scenario::TearDown();
  }

  // With stores on the disk of the images; containers get no network. Docker gives a containerd that it
  // starts itself fifteen seconds, which an emulated processor does not keep.
  void start_service() {
    const fs::path store = images("docker"), engine = kEngineState / "containerd.sock";
    Launch containerd;
    containerd.arguments = {"containerd", "--root", store / "containerd", "--state", kEngineState,
                            "--address",  engine};
    containerd.output = new_log("containerd");
    containerd_.emplace(containerd, engine);
    const fs::path socket = "/run/docker.sock";
    Launch docker_daemon;
    docker_daemon.arguments = {"dockerd",
                               "--experimental",
                               "--iptables=false",
                               "--ip6tables=false",
                               "--bridge=none",
                               "--containerd=" + engine.string(),
                               "--data-root=" + (store / "docker").string(),
                               "--pidfile=/run/docker.pid",
                               "--host=unix://" + socket.string()};
    docker_daemon.output = new_log("dockerd");
    service_.emplace(docker_daemon, socket);
    // It takes connections before it answers.
    EXPECT_TRUE(eventually([this] { return docker({"version"}).status == 0; }));
  }

  fs::path new_log(const std::string& name) {
    fs::create_directories(criu_->logs());
    return criu_->logs() / (name + "-" + std::to_string(++logs_) + ".log");
  }

  struct Said {
    std::optional<int> status;
    std::string text;
  };
  Said docker(const Strings& arguments) {
    Launch launch;
    launch.arguments = {"docker"};
    launch.arguments.insert(launch.arguments.end(), arguments.begin(), arguments.end());
    launch.output = new_log("docker");
    // Docker waits long for what an emulated processor does.
    const std::optional<int> status = run(launch, Seconds(600));
    return {status, read_file(launch.output)};
  }
  void expect_done(const Strings& arguments) {
    const Said said = docker(arguments);
    ASSERT_EQ(said.status, 0) << arguments.front() << ": " << said.text;
  }

  void adopt() {
    subject_->adopt(std::atoi(docker({"inspect", "--format", "{{.State.Pid}}", "job"}).text.c_str()));
  }

  void start_job() {
    const fs::path root = settings().images / "job-root.tar";
    make_job_root(root);
    ASSERT_NO_FATAL_FAILURE(expect_done({"import", root, kJobImage}));
    Strings words = {"run",       "--detach",
                     "--name",    "job",
                     "--network", "none",
                     "--device",  "/dev/kfd",
                     "--device",  "/dev/dri/renderD128",
                     "--volume",  subject_->directory().string() + ":" + kFifosInside,
                     kJobImage,   settings().programs / "gpu-subject",
                     "--control", kFifosInside};
    const Strings options =
        with_common_options({"--gpus", "0", "--vram", "8M", "--gtt", "2M", "--run-queues"});
    words.insert(words.end(), options.begin(), options.end());
    ASSERT_NO_FATAL_FAILURE(expect_done(words));
    adopt();
    const std::string ready = subject_->hear();
    ASSERT_EQ(ready.rfind("ready", 0), 0U) << "the subject said: " << ready;
  }

  void expect_job_whole() {
    ASSERT_NO_FATAL_FAILURE(expect_queues_run());
    ASSERT_NO_FATAL_FAILURE(expect_whole());
  }

  std::optional<Daemon> containerd_, service_;

 private:
  unsigned logs_ = 0;
};

// It has one of two GPUs. The first checkpoint leaves it running, the second one ends it.
TEST_F(Docker, AContainerIsStartedFromItsCheckpoint) {
  ASSERT_NO_FATAL_FAILURE(start_job());
  ASSERT_NO_FATAL_FAILURE(expect_done({"checkpoint", "create", "--leave-running", "job", "first"}));
  ASSERT_NO_FATAL_FAILURE(expect_job_whole());
  ASSERT_NO_FATAL_FAILURE(expect_done({"checkpoint", "create", "job", "second"}));
  ASSERT_FALSE(subject_->alive());
  ASSERT_NO_FATAL_FAILURE(expect_done({"start", "--checkpoint", "second", "job"}));
  adopt();
  const auto process = machine().process(subject_->pid());
  ASSERT_TRUE(process.has_value());
  EXPECT_EQ(process->gpus_with_vram(), std::set{machine().gpu_ids().front()});
  EXPECT_EQ(process->gpu_ids.size(), 1U);
  ASSERT_NO_FATAL_FAILURE(expect_job_whole());
}

}  // namespace
}  // namespace sluice::vm_test
