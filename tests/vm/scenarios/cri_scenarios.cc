// SPDX-License-Identifier: MIT
// A job in a container of containerd's interface for Kubernetes (CRI). What the kubelet asks for is asked by
// a small client (tests/vm/client/cri.py): a checkpoint into an archive, and a container that is made of it.
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "container.h"
#include "daemon.h"
#include "scenario.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFifos = "/control";
const fs::path kRun = "/run/containerd";

// An image by hand: FOLDER NAME ENTRYPOINT, of the folder's `root`. In the folder's `blobs` it is as a
// registry has it, and `image.tar` is as Docker saves one.
constexpr const char* kMakeImage = R"script(
set -e
cd "$1"
mkdir blobs
blob() {  # FILE: named by its sum; its description
  sum=$(sha256sum "$1" | cut -d ' ' -f 1)
  cp "$1" "blobs/$sum"
  echo '"digest":"sha256:'"$sum"'","size":'"$(stat -c %s "$1")"
}
tar -C root -cf layer.tar .
layer=$(blob layer.tar)
echo '{"architecture":"amd64","os":"linux","config":{"Entrypoint":'"$3"'},
"rootfs":{"type":"layers","diff_ids":["sha256:'"$(sha256sum layer.tar | cut -d ' ' -f 1)"'"]}}' >config.json
echo '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
"config":{"mediaType":"application/vnd.oci.image.config.v1+json",'"$(blob config.json)"'},
"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar",'"$layer"'}]}' >blobs/manifest
echo '[{"Config":"config.json","RepoTags":["'"$2"'"],"Layers":["layer.tar"]}]' >manifest.json
tar -cf image.tar manifest.json config.json layer.tar
)script";

class Cri : public Scenario {
 protected:
  void SetUp() override {
    Scenario::SetUp();
    if (!fs::exists("/usr/bin/python3")) GTEST_SKIP() << "this suite's guest has no client of the CRI";
    load();
    start_service();
    subject_.emplace(scratch() / "job", kFifos);
    ASSERT_NO_FATAL_FAILURE(make_images());
  }
  void TearDown() override {
    if (service_) remove();
    subject_.reset();
    service_.reset();
    if (registry_ > 0) kill_and_reap(registry_);
    (void)eventually([] { return living_children().empty(); });
    Scenario::TearDown();
  }

  void start_service() {
    const fs::path store = images("containerd"), configuration = scratch() / "config.toml";
    fs::create_directories(store / "tmp");
    write_file(configuration,
               "version = 3\n[plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = '" +
                   std::string(kPauseImage) + "'\n");
    write_file("/etc/resolv.conf", "");
    Launch launch;
    launch.arguments = {"containerd", "--config",     configuration,
                        "--root",     store / "root", "--state",
                        kRun,         "--address",    kRun / "containerd.sock"};
    launch.environment = {{"TMPDIR", store / "tmp"}};
    launch.output = new_log("containerd");
    service_.emplace(launch, kRun / "containerd.sock");
  }

  static void make_image(const fs::path& folder, const char* name, const json& entrypoint) {
    Launch make;
    make.arguments = {"sh", "-c", kMakeImage, "sh", folder, name, entrypoint.dump()};
    make.output = "/dev/console";
    ASSERT_EQ(run(make), 0);
  }

  // The job's comes from a registry: at a restore this containerd pulls it again, and looks nowhere else. The
  // other one's program does nothing; it holds the namespaces of a pod.
  void make_images() {
    const fs::path job = images("job-image"), pause = images("pause-image");
    for (const char* name : {"tmp", "control"}) fs::create_directories(job / "root" / name);
    const std::string program = (settings().programs / "gpu-subject").string();
    copy_below(job / "root", files_of_program(program));
    ASSERT_NO_FATAL_FAILURE(make_image(job, kJobImageOfCri, json::array({program})));
    Launch registry;
    registry.arguments = {"python3", settings().programs / "registry.py", job / "blobs", "5000"};
    registry.output = new_log("registry");
    registry_ = vm_test::start(registry);
    ASSERT_TRUE(eventually([&] { return read_file(registry.output).starts_with("listening"); }));
    (void)ask("PullImage", {{"image", {{"image", kJobImageOfCri}}}});

    fs::create_directories(pause / "root");
    fs::copy_file("/usr/bin/busybox", pause / "root" / "busybox");
    ASSERT_NO_FATAL_FAILURE(make_image(pause, kPauseImage, json::array({"/busybox", "sleep", "1000000"})));
    Launch import;
    import.arguments = {"ctr",    "--address", service_->socket(), "--namespace",
                        "k8s.io", "images",    "import",           pause / "image.tar"};
    import.output = new_log("ctr");
    ASSERT_EQ(run(import), 0);
  }

  fs::path new_log(const std::string& name) {
    fs::create_directories(criu_->logs());
    return criu_->logs() / (name + "-" + std::to_string(++logs_) + ".log");
  }

  // One call; the id in its answer.
  std::string ask(const std::string& call, const json& request) {
    Launch client;
    client.arguments = {"python3", settings().programs / "cri.py", service_->socket(), call, request.dump()};
    client.output = new_log(call);
    const std::optional<int> status = run(client);
    std::string answer = read_file(client.output);
    EXPECT_EQ(status, 0) << call << ": " << answer;
    while (!answer.empty() && answer.back() == '\n') answer.pop_back();
    return answer;
  }

  // A pod named `pod` with one container of this image, and the job in it. False: it does not start.
  bool start(const std::string& pod, const std::string& image) {
    const fs::path logs = scratch() / pod;
    fs::create_directories(logs);
    const json namespaces = {{"namespace_options", {{"network", 2}}}};
    const json sandbox = {{"metadata", {{"name", pod}, {"uid", pod}, {"namespace", "default"}}},
                          {"log_directory", logs.string()},
                          {"linux", {{"security_context", namespaces}}}};
    Strings arguments = {"--control", kFifos};
    for (const std::string& option :
         with_common_options({"--gpus", "0", "--vram", "8M", "--gtt", "2M", "--run-queues"}))
      arguments.push_back(option);
    json devices = json::array();
    for (const char* node : {"/dev/kfd", "/dev/dri/renderD128"})
      devices.push_back({{"container_path", node}, {"host_path", node}, {"permissions", "rw"}});
    const json container = {
        {"metadata", {{"name", "job"}}},
        {"image", {{"image", image}}},
        {"args", arguments},
        {"mounts",
         json::array({{{"container_path", kFifos}, {"host_path", subject_->directory().string()}}})},
        {"devices", devices},
        {"log_path", "job.log"},
        {"linux", {{"security_context", namespaces}}}};
    pod_ = ask("RunPodSandbox", {{"config", sandbox}});
    if (HasFailure()) return false;
    container_ = ask("CreateContainer",
                     {{"pod_sandbox_id", pod_}, {"config", container}, {"sandbox_config", sandbox}});
    if (HasFailure()) return false;
    (void)ask("StartContainer", {{"container_id", container_}});
    const fs::path task = kRun / "io.containerd.runtime.v2.task" / "k8s.io" / container_;
    subject_->adopt(std::atoi(read_file(task / "init.pid").c_str()));
    return !HasFailure();
  }

  // Container and pod, as far as they are there.
  void remove() {
    if (!container_.empty()) {
      (void)ask("StopContainer", {{"container_id", container_}, {"timeout", 0}});
      (void)ask("RemoveContainer", {{"container_id", container_}});
    }
    if (!pod_.empty()) {
      (void)ask("StopPodSandbox", {{"pod_sandbox_id", pod_}});
      (void)ask("RemovePodSandbox", {{"pod_sandbox_id", pod_}});
    }
    container_.clear();
    pod_.clear();
    subject_->forget();
  }

  void expect_job_whole() {
    const auto process = machine().process(subject_->pid());
    ASSERT_TRUE(process.has_value());
    EXPECT_EQ(process->gpu_ids.size(), 1U);
    ASSERT_NO_FATAL_FAILURE(expect_queues_run());
    ASSERT_NO_FATAL_FAILURE(expect_whole());
  }

  static constexpr const char* kJobImageOfCri = "localhost:5000/job:1";
  static constexpr const char* kPauseImage = "localhost/pause:1";

  std::optional<Daemon> service_;
  pid_t registry_ = 0;
  std::string pod_, container_;

 private:
  unsigned logs_ = 0;
};

// One of two GPUs. The job runs on after the checkpoint; then its pod goes, and another pod gets a container
// of the archive.
TEST_F(Cri, AContainerIsMadeOfTheArchiveThatTheKubeletAsksFor) {
  ASSERT_TRUE(start("first", kJobImageOfCri));
  const std::string ready = subject_->hear();
  ASSERT_EQ(ready.rfind("ready", 0), 0U) << "the subject said: " << ready;
  const fs::path archive = images("data") / "checkpoint.tar";
  (void)ask("CheckpointContainer",
            {{"container_id", container_}, {"location", archive.string()}, {"timeout", 300}});
  ASSERT_FALSE(HasFailure());
  ASSERT_NO_FATAL_FAILURE(expect_job_whole());
  Launch tool;
  tool.arguments = {(settings().programs / "sluice").string(), "verify", archive};
  tool.output = "/dev/console";
  EXPECT_EQ(run(tool), 0);
  remove();
  ASSERT_TRUE(start("second", archive));
  ASSERT_NO_FATAL_FAILURE(expect_job_whole());
}

}  // namespace
}  // namespace sluice::vm_test
