// SPDX-License-Identifier: MIT
// A job in a container of containerd's interface for Kubernetes (CRI). What the kubelet asks for is asked by
// a small client (tests/vm/client/cri.py): a checkpoint into an archive, also past its deadline, and a
// container that is made of the archive or of an image with it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "base/unique_fd.h"
#include "container.h"
#include "daemon.h"
#include "scenario.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFifos = "/control";
const fs::path kRun = "/run/containerd";

// An image by hand: FOLDER NAME ENTRYPOINT ANNOTATIONS, of the folder's `layer.tar`, or else of its `root`.
// In the folder's `blobs` it is as a registry has it, and `image.tar` is as Docker saves one.
constexpr const char* kMakeImage = R"script(
set -e
cd "$1"
mkdir blobs
blob() {  # FILE: named by its sum; its description
  sum=$(sha256sum "$1" | cut -d ' ' -f 1)
  cp "$1" "blobs/$sum"
  echo '"digest":"sha256:'"$sum"'","size":'"$(stat -c %s "$1")"
}
[ -e layer.tar ] || tar -C root -cf layer.tar .
layer=$(blob layer.tar)
echo '{"architecture":"amd64","os":"linux","config":{"Entrypoint":'"$3"'},
"rootfs":{"type":"layers","diff_ids":["sha256:'"$(sha256sum layer.tar | cut -d ' ' -f 1)"'"]}}' >config.json
echo '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","annotations":'"$4"',
"config":{"mediaType":"application/vnd.oci.image.config.v1+json",'"$(blob config.json)"'},
"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar",'"$layer"'}]}' >blobs/manifest
echo '[{"Config":"config.json","RepoTags":["'"$2"'"],"Layers":["layer.tar"]}]' >manifest.json
tar -cf image.tar manifest.json config.json layer.tar
)script";

// From now on each dump that runc asks for waits at CRIU's post-dump, when everything is written and the job
// is still stopped, for a line of release().
class HeldDumps {
 public:
  explicit HeldDumps(const fs::path& folder) : reached_(folder / "reached") {
    fs::create_directories(folder);
    const fs::path script = folder / "wait", lines = folder / "lines";
    if (::mkfifo(lines.c_str(), 0600) != 0) throw std::system_error(errno, std::generic_category(), lines);
    lines_.reset(
        ::open(lines.c_str(), O_RDWR | O_CLOEXEC));  // also as a reader: no write to it waits or fails
    write_file(script, "#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" = post-dump ] || exit 0\n: >" +
                           reached_.string() + "\nread line <" + lines.string() + "\n");
    fs::permissions(script, fs::perms::owner_all);
    fs::create_directories(kConfiguration.parent_path());
    write_file(kConfiguration, "action-script " + script.string() + "\n");
  }
  ~HeldDumps() { (void)fs::remove(kConfiguration); }
  HeldDumps(const HeldDumps&) = delete;
  HeldDumps& operator=(const HeldDumps&) = delete;

  // Whether a dump waits, or has waited.
  bool reached() const { return fs::exists(reached_); }
  void release() const { ASSERT_EQ(::write(lines_.get(), "\n", 1), 1); }

 private:
  inline static const fs::path kConfiguration = "/etc/criu/runc.conf";
  fs::path reached_;
  UniqueFd lines_;
};

bool a_criu_runs() {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    if (read_file(entry.path() / "comm") == "criu\n") return true;
  }
  return false;
}

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
    for (const pid_t registry : registries_) kill_and_reap(registry);
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

  static void make_image(const fs::path& folder, const char* name, const json& entrypoint,
                         const json& annotations = json::object()) {
    Launch make;
    make.arguments = {"sh", "-c", kMakeImage, "sh", folder, name, entrypoint.dump(), annotations.dump()};
    make.output = "/dev/console";
    ASSERT_EQ(run(make), 0);
  }

  // The image made in `folder` is served at this port of the registry's address, and pulled from there.
  void pull(const fs::path& folder, const char* port, const char* name) {
    Launch registry;
    registry.arguments = {"python3", settings().programs / "registry.py", folder / "blobs", port};
    registry.output = new_log("registry");
    registries_.push_back(vm_test::start(registry));
    ASSERT_TRUE(eventually([&] { return read_file(registry.output).starts_with("listening"); }));
    (void)ask("PullImage", {{"image", {{"image", name}}}});
  }

  // The job's comes from a registry: at a restore this containerd pulls it again, and looks nowhere else. The
  // other one's program does nothing; it holds the namespaces of a pod.
  void make_images() {
    const fs::path job = images("job-image"), pause = images("pause-image");
    for (const char* name : {"tmp", "control"}) fs::create_directories(job / "root" / name);
    const std::string program = (settings().programs / "gpu-subject").string();
    copy_below(job / "root", files_of_program(program));
    ASSERT_NO_FATAL_FAILURE(make_image(job, kJobImageOfCri, json::array({program})));
    ASSERT_NO_FATAL_FAILURE(pull(job, "5000", kJobImageOfCri));

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

  struct Answer {
    std::optional<int> status;
    std::string text;
  };

  // One call, with this deadline.
  Answer call(const std::string& name, const json& request, Seconds deadline) {
    Launch client;
    client.arguments = {"python3",      settings().programs / "cri.py",  service_->socket(), name,
                        request.dump(), std::to_string(deadline.count())};
    client.output = new_log(name);
    const std::optional<int> status = run(client);
    return {status, read_file(client.output)};
  }

  // One call that is answered; the id in its answer.
  std::string ask(const std::string& name, const json& request) {
    Answer answer = call(name, request, kPatience);
    EXPECT_EQ(answer.status, 0) << name << ": " << answer.text;
    while (!answer.text.empty() && answer.text.back() == '\n') answer.text.pop_back();
    return answer.text;
  }

  // The checkpoint that the kubelet asks for.
  void checkpoint(const fs::path& archive) {
    (void)ask("CheckpointContainer",
              {{"container_id", container_}, {"location", archive.string()}, {"timeout", 300}});
  }

  // The job in its first pod.
  void start_job() {
    ASSERT_TRUE(start("first", kJobImageOfCri));
    const std::string ready = subject_->hear();
    ASSERT_EQ(ready.rfind("ready", 0), 0U) << "the subject said: " << ready;
  }

  // A pod named `pod` with one container of this image, and the job in it. As from the kubelet, the container
  // has files of its pod: the hosts, and a log of its termination. False: it does not start.
  bool start(const std::string& pod, const std::string& image) {
    const fs::path logs = scratch() / pod;
    fs::create_directories(logs);
    json mounts = json::array({{{"container_path", kFifos}, {"host_path", subject_->directory().string()}}});
    for (const char* inside : {kHosts, kTerminationLog}) {
      const fs::path outside = logs / fs::path(inside).filename();
      write_file(outside, pod);
      mounts.push_back({{"container_path", inside}, {"host_path", outside.string()}});
    }
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
    const json container = {{"metadata", {{"name", "job"}}},
                            {"image", {{"image", image}}},
                            {"args", arguments},
                            {"mounts", mounts},
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

  // The job is intact, and has the files of this pod.
  void expect_job_whole(const std::string& pod) {
    const fs::path root = fs::path("/proc") / std::to_string(subject_->pid()) / "root";
    for (const char* inside : {kHosts, kTerminationLog}) EXPECT_EQ(read_file(root.string() + inside), pod);
    const auto process = machine().process(subject_->pid());
    ASSERT_TRUE(process.has_value());
    EXPECT_EQ(process->gpu_ids.size(), 1U);
    ASSERT_NO_FATAL_FAILURE(expect_queues_run());
    ASSERT_NO_FATAL_FAILURE(expect_whole());
  }

  void expect_verified(const fs::path& archive) {
    Launch tool;
    tool.arguments = {(settings().programs / "sluice").string(), "verify", archive};
    tool.output = "/dev/console";
    EXPECT_EQ(run(tool), 0);
  }

  // runc's, of containerd's containers. What it says.
  std::string runc(const Strings& words) {
    Launch launch;
    launch.arguments = {"runc", "--root", kRun / "runc" / "k8s.io"};
    launch.arguments.insert(launch.arguments.end(), words.begin(), words.end());
    launch.output = new_log("runc");
    EXPECT_EQ(run(launch), 0);
    return read_file(launch.output);
  }

  static constexpr const char* kJobImageOfCri = "localhost:5000/job:1";
  static constexpr const char* kCheckpointImage = "localhost:5001/checkpoint:1";
  static constexpr const char* kPauseImage = "localhost/pause:1";
  static constexpr const char *kHosts = "/etc/hosts", *kTerminationLog = "/dev/termination-log";

  std::optional<Daemon> service_;
  std::vector<pid_t> registries_;
  std::string pod_, container_;

 private:
  unsigned logs_ = 0;
};

// One of two GPUs. The job runs on after the checkpoint; then its pod goes, and another pod gets a container
// of the archive.
TEST_F(Cri, AContainerIsMadeOfTheArchiveThatTheKubeletAsksFor) {
  ASSERT_NO_FATAL_FAILURE(start_job());
  const fs::path archive = images("data") / "checkpoint.tar";
  checkpoint(archive);
  ASSERT_FALSE(HasFailure());
  ASSERT_NO_FATAL_FAILURE(expect_job_whole("first"));
  expect_verified(archive);
  remove();
  ASSERT_TRUE(start("second", archive));
  ASSERT_NO_FATAL_FAILURE(expect_job_whole("second"));
}

// As a pod names it: the archive is the layer of an image, whose annotation says what it is.
TEST_F(Cri, AContainerIsMadeOfAnImageWithTheAnnotationOfACheckpoint) {
  ASSERT_NO_FATAL_FAILURE(start_job());
  const fs::path folder = images("checkpoint-image");
  checkpoint(folder / "layer.tar");
  ASSERT_FALSE(HasFailure());
  remove();
  const json annotations = {{"org.criu.checkpoint.container.name", "job"}};
  ASSERT_NO_FATAL_FAILURE(make_image(folder, kCheckpointImage, json::array(), annotations));
  ASSERT_NO_FATAL_FAILURE(pull(folder, "5001", kCheckpointImage));
  ASSERT_TRUE(start("second", kCheckpointImage));
  ASSERT_NO_FATAL_FAILURE(expect_job_whole("second"));
}

// The dump is undone, but containerd leaves the container paused, and there is no archive. The deadline
// leaves an emulated processor time for the dump.
TEST_F(Cri, AJobWhoseCheckpointIsLateGoesOnWhenItIsResumed) {
  ASSERT_NO_FATAL_FAILURE(start_job());
  const fs::path archive = images("data") / "checkpoint.tar";
  {
    const HeldDumps held(scratch() / "held");
    const Answer late = call("CheckpointContainer",
                             {{"container_id", container_}, {"location", archive.string()}}, Seconds(30));
    EXPECT_TRUE(held.reached());
    ASSERT_NO_FATAL_FAILURE(held.release());
    EXPECT_EQ(late.status, 1);
    EXPECT_TRUE(late.text.starts_with("DEADLINE_EXCEEDED")) << late.text;
    ASSERT_TRUE(eventually([] { return !a_criu_runs(); }));
  }
  EXPECT_FALSE(fs::exists(archive));
  EXPECT_EQ(json::parse(runc({"state", container_}))["status"], "paused");
  (void)runc({"resume", container_});
  ASSERT_NO_FATAL_FAILURE(expect_job_whole("first"));
  checkpoint(archive);
  ASSERT_NO_FATAL_FAILURE(expect_job_whole("first"));
  expect_verified(archive);
}

}  // namespace
}  // namespace sluice::vm_test
