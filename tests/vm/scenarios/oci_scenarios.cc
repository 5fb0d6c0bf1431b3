// SPDX-License-Identifier: MIT
// Containers that a real OCI runtime runs, checkpoints and restores; and several that are restored at once on
// a machine with equal GPUs.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <memory>
#include <set>
#include <system_error>

#include "base/unique_fd.h"
#include "minors.h"
#include "oci_container.h"
#include "scenario.h"
#include "support/flip_byte.h"

namespace sluice::vm_test {
namespace {

namespace fs = std::filesystem;

constexpr char kGpuNodes[] =
#include "gpu_nodes.inc"
    ;

void expect_container_whole(OciContainer& container) {
  for (const std::string command : {"check", "queue-progress", "work", "check"}) {
    const std::string answer = container.subject().ask(command);
    ASSERT_EQ(answer.rfind("ok " + command, 0), 0U) << answer;
  }
}

class OciRuntime : public Scenario, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    Scenario::SetUp();
    if (!has_runtime(GetParam())) GTEST_SKIP() << "this suite's guest has no " << GetParam();
  }

  OciBundle bundle(const std::string& id, const std::vector<unsigned>& render_minors,
                   const Strings& subject) const {
    OciBundle made;
    made.runtime = GetParam();
    made.id = id;
    made.directory = images(id);
    made.render_minors = render_minors;
    made.subject = with_common_options(subject);
    return made;
  }

  static void start(OciContainer& container) {
    const std::string ready = container.run();
    ASSERT_EQ(ready.rfind("ready", 0), 0U) << "the subject said: " << ready;
    ASSERT_NO_FATAL_FAILURE(expect_container_whole(container));
  }

  // So many GPUs does the job see.
  void expect_gpus(const OciContainer& container, std::size_t number) {
    const auto process = machine().process(container.pid());
    ASSERT_TRUE(process.has_value());
    EXPECT_EQ(process->gpu_ids.size(), number);
  }

  // All of its VRAM is on this GPU.
  void expect_memory_on(const OciContainer& container, std::uint32_t gpu_id) {
    const auto process = machine().process(container.pid());
    ASSERT_TRUE(process.has_value());
    EXPECT_EQ(process->gpus_with_vram(), std::set{gpu_id});
  }

  static void expect_good(const CriuRun& run, const std::string& what) {
    ASSERT_TRUE(run.good()) << GetParam() << " " << what << " ended with " << run.status.value_or(-1);
  }
};

// One of two GPUs is the container's. crun without systemd restores before the device cgroup is in force, so
// its job sees both afterwards; what it had is on its own.
TEST_P(OciRuntime, ContainerComesBackWhole) {
  load();
  OciContainer container(
      bundle("job", render_minors(1), {"--gpus", "0", "--vram", "4M", "--gtt", "1M", "--run-queues"}),
      criu_->logs());
  ASSERT_NO_FATAL_FAILURE(start(container));
  expect_gpus(container, 1);
  const Strings possessions = possessions_of(container.pid());
  ASSERT_NO_FATAL_FAILURE(expect_good(container.checkpoint(images()), "checkpoint"));
  container.start_restore(images());
  ASSERT_NO_FATAL_FAILURE(expect_good(container.finish_restore(), "restore"));
  if (criu_traits().takes_map_fds) {
    EXPECT_EQ(possessions_of(container.pid()), possessions) << "the restore added something, or lost it";
  }
  expect_gpus(container, hides_other_gpus_at_once(GetParam()) ? 1 : 2);
  expect_memory_on(container, machine().gpu_ids().front());
  ASSERT_NO_FATAL_FAILURE(expect_container_whole(container));
  EXPECT_EQ(container.subject().quit(), 0);
}

// Restored from the images of a job that had the first GPU, a container whose specification names the second
// one gets that, and no memory is taken of the first, which may be another job's. Also by crun, whose job
// sees both at that moment.
TEST_P(OciRuntime, TheActionScriptGivesTheGpuOfTheNewSpecificationAndNoOther) {
  load();
  const Strings subject = {"--gpus", "0", "--vram", "4M", "--gtt", "1M", "--run-queues"};
  {
    OciContainer first(bundle("first", render_minors(1), subject), criu_->logs());
    ASSERT_NO_FATAL_FAILURE(start(first));
    expect_memory_on(first, machine().gpu_ids().at(0));
    ASSERT_NO_FATAL_FAILURE(expect_good(first.checkpoint(images()), "checkpoint"));
  }
  const fs::path script = scratch() / "gpu-nodes", configuration = scratch() / "criu.conf";
  write_file(script, kGpuNodes);
  fs::permissions(script, fs::perms::owner_all);
  write_file(configuration, "action-script " + script.string() + "\n");
  OciBundle other = bundle("other", {render_minors().at(1)}, subject);
  other.criu_configuration = configuration;
  OciContainer second(std::move(other), criu_->logs());
  second.start_restore(images());
  const CriuRun restore = second.finish_restore();
  if (!takes_action_script()) {
    EXPECT_FALSE(restore.good()) << "criu runs the script of a configuration file";
    return;
  }
  ASSERT_NO_FATAL_FAILURE(expect_good(restore, "restore"));
  expect_memory_on(second, machine().gpu_ids().at(1));
  ASSERT_NO_FATAL_FAILURE(expect_container_whole(second));
  EXPECT_EQ(second.subject().quit(), 0);
}

// runc from 1.2 on and crun from 1.27 on quote CRIU's errors, and ours as those.
TEST_P(OciRuntime, AFailedRestoreTellsTheUserOurReason) {
  if (settings().suite != "forky") GTEST_SKIP() << "Debian 13's runtimes quote nothing of CRIU's log";
  load();
  OciContainer container(
      bundle("job", render_minors(1), {"--gpus", "0", "--vram", "4M", "--gtt", "1M", "--run-queues"}),
      criu_->logs());
  ASSERT_NO_FATAL_FAILURE(start(container));
  ASSERT_NO_FATAL_FAILURE(expect_good(container.checkpoint(images()), "checkpoint"));
  for (const auto& image : fs::directory_iterator(images())) {
    if (image.path().filename().string().starts_with("amdgpu-pages-"))
      test::flip_byte(image.path(), image.file_size() / 2);
  }
  container.start_restore(images());
  EXPECT_FALSE(container.finish_restore().good());
  const std::string words = container.runtime_words();
  const std::size_t at = words.find("amdgpu_plugin: Error (");
  ASSERT_NE(at, std::string::npos) << words;
  EXPECT_NE(words.find("amdgpu-pages-", at), std::string::npos) << words;
}

// ---- two restores at once

// Where the criu of each restore waits until the others are there, too: when the container has its mounts and
// none of its files. A script of criu's brings it here.
class Meeting {
 public:
  explicit Meeting(fs::path directory) : directory_(std::move(directory)) {
    fs::create_directories(directory_);
    here_ = make_fifo("here");
    go_ = make_fifo("go");
    // CRIU reads a runtime's configuration twice, and runs a script that it names as often.
    write_file(script(), "#!/bin/sh\ncd " + directory_.string() + R"( || exit 1
[ "$CRTOOLS_SCRIPT_ACTION" = post-setup-namespaces ] || exit 0
mkdir "$CRTOOLS_INIT_PID" 2>/dev/null || exit 0
echo >here
read -r line <go
)");
    fs::permissions(script(), fs::perms::owner_all);
  }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  fs::path script() const { return directory_ / "script"; }

  // Waits until all of `restores` are there; then they go on. False when one has ended before: the others go
  // on, too.
  bool wait_for(const std::vector<pid_t>& restores) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    std::size_t there = 0;
    bool coming = true;
    while (coming && there < restores.size()) {
      pollfd wait{here_.get(), POLLIN, 0};
      std::array<char, 8> lines{};
      if (::poll(&wait, 1, 200) > 0)
        there +=
            static_cast<std::size_t>(std::max<ssize_t>(::read(here_.get(), lines.data(), lines.size()), 0));
      coming =
          std::all_of(restores.begin(), restores.end(), is_alive) && std::chrono::steady_clock::now() < end;
    }
    const std::string lines(restores.size(), '\n');
    (void)!::write(go_.get(), lines.data(), lines.size());
    return there == restores.size();
  }

 private:
  // Both ends, so that a script waits for a line and for nothing else.
  UniqueFd make_fifo(const char* name) const {
    const std::string path = directory_ / name;
    UniqueFd fd(::mkfifo(path.c_str(), 0600) == 0 ? ::open(path.c_str(), O_RDWR | O_CLOEXEC) : -1);
    if (!fd) throw std::system_error(errno, std::generic_category(), path);
    return fd;
  }

  fs::path directory_;
  UniqueFd here_, go_;
};

// A machine with four equal GPUs. One container's job used the first; two containers are restored from it.
class RestoredAtOnce : public OciRuntime {
 protected:
  void SetUp() override {
    OciRuntime::SetUp();
    if (IsSkipped()) return;
    if (!takes_annotation(GetParam())) GTEST_SKIP() << "this crun hands CRIU no configuration file";
    load({.number = 4, .vram_mib = 16});
    ids_ = machine().gpu_ids();
    ASSERT_NO_FATAL_FAILURE(checkpoint_job());
    meeting_.emplace(scratch() / "meeting");
  }
  void TearDown() override {
    meeting_.reset();
    containers_.clear();
    OciRuntime::TearDown();
  }

  // A container that is going to be restored. `settings`: lines of a sluice.conf that is its own; none: it
  // has none.
  void add(const std::string& id, const std::string& settings) {
    const fs::path own = scratch() / id;
    fs::create_directories(own);
    std::string configuration = "action-script " + meeting_->script().string() + "\n";
    if (!settings.empty()) {
      fs::create_symlink(vm_test::settings().plugin, own / "amdgpu_plugin.so");
      write_file(own / "sluice.conf", settings);
      configuration += "libdir " + own.string() + "\n";
    }
    write_file(own / "criu.conf", configuration);
    OciBundle its = job(id);
    its.criu_configuration = own / "criu.conf";
    containers_.push_back(std::make_unique<OciContainer>(std::move(its), criu_->logs()));
  }

  // All of them, each from a copy of the images; no restore ends before all have begun.
  void restore_all() {
    std::vector<pid_t> restores;
    for (std::size_t i = 0; i < containers_.size(); ++i) {
      const fs::path copy = images("copy-" + std::to_string(i));
      fs::copy(images(), copy, fs::copy_options::recursive);
      restores.push_back(containers_[i]->start_restore(copy));
    }
    EXPECT_TRUE(meeting_->wait_for(restores)) << "a restore ended before both were in the middle";
    std::vector<CriuRun> runs;
    for (const auto& container : containers_) runs.push_back(container->finish_restore());
    for (const CriuRun& run : runs) ASSERT_NO_FATAL_FAILURE(expect_good(run, "restore"));
    for (const auto& container : containers_) ASSERT_NO_FATAL_FAILURE(expect_container_whole(*container));
  }

  // gpu_ids of the GPUs that hold the memory of a container's job.
  std::set<std::uint32_t> gpus_of(const OciContainer& container) {
    const auto process = machine().process(container.pid());
    return process ? process->gpus_with_vram() : std::set<std::uint32_t>();
  }
  std::set<std::uint32_t> gpus_of(std::size_t index) { return gpus_of(*containers_[index]); }

  // A line of settings: the job's GPU is this one now.
  std::string map_to(std::size_t gpu) const {
    return "SLUICE_GPU_MAP=" + std::to_string(ids_[0]) + "=" + std::to_string(ids_[gpu]) + "\n";
  }

  void quit_all() {
    for (const auto& container : containers_) EXPECT_EQ(container->subject().quit(), 0);
  }

  std::vector<std::uint32_t> ids_;  // of the GPUs, first that of the checkpoint

 private:
  // More than half of a GPU's VRAM.
  OciBundle job(const std::string& id) const {
    const std::uint64_t vram = machine_.vram_bytes() / 8 * 5 >> 20;
    return bundle(id, render_minors(4),
                  {"--gpus", "1", "--one-bo", std::to_string(vram) + "M", "--zero", "95", "--run-queues"});
  }

  void checkpoint_job() {
    OciContainer first(job("first"), criu_->logs());
    ASSERT_NO_FATAL_FAILURE(start(first));
    const std::set<std::uint32_t> used = gpus_of(first);
    ASSERT_EQ(used.size(), 1U);
    std::iter_swap(ids_.begin(), std::find(ids_.begin(), ids_.end(), *used.begin()));
    ASSERT_NO_FATAL_FAILURE(expect_good(first.checkpoint(images()), "checkpoint"));
  }

  std::optional<Meeting> meeting_;
  std::vector<std::unique_ptr<OciContainer>> containers_;
};

TEST_P(RestoredAtOnce, EachLandsOnTheGpuThatItsOwnMapNames) {
  ASSERT_NO_FATAL_FAILURE(add("one", map_to(2)));
  ASSERT_NO_FATAL_FAILURE(add("two", map_to(1)));
  ASSERT_NO_FATAL_FAILURE(restore_all());
  EXPECT_EQ(gpus_of(0), std::set{ids_[2]});
  EXPECT_EQ(gpus_of(1), std::set{ids_[1]});
  quit_all();
}

TEST_P(RestoredAtOnce, WithoutMapsTheyDoNotChooseTheSameGpu) {
  ASSERT_NO_FATAL_FAILURE(add("one", ""));
  ASSERT_NO_FATAL_FAILURE(add("two", ""));
  ASSERT_NO_FATAL_FAILURE(restore_all());
  for (const std::size_t i : {0U, 1U}) EXPECT_EQ(gpus_of(i).size(), 1U) << "container " << i;
  EXPECT_NE(gpus_of(0), gpus_of(1));
  quit_all();
}

// ---- one after another

// A container with all GPUs runs on after a first checkpoint, and comes back from a second one. When somebody
// does not like that one, it comes back from the first.
TEST_P(OciRuntime, OlderImageIsRestoredAfterANewerOne) {
  load();
  OciContainer container(
      bundle("job", render_minors(2), {"--gpus", "0", "--vram", "4M", "--gtt", "1M", "--run-queues"}),
      criu_->logs());
  ASSERT_NO_FATAL_FAILURE(start(container));
  ASSERT_NO_FATAL_FAILURE(expect_good(container.checkpoint(images("older"), true), "checkpoint"));
  ASSERT_NO_FATAL_FAILURE(expect_container_whole(container));
  ASSERT_NO_FATAL_FAILURE(expect_good(container.checkpoint(images("newer")), "checkpoint"));
  for (const char* name : {"newer", "older"}) {
    SCOPED_TRACE(name);
    container.start_restore(images(name));
    ASSERT_NO_FATAL_FAILURE(expect_good(container.finish_restore(), "restore"));
    ASSERT_NO_FATAL_FAILURE(expect_container_whole(container));
    container.remove();
  }
}

const auto kRuntimes = testing::Values("runc", "crun");
std::string name_of(const testing::TestParamInfo<const char*>& info) {
  return info.param;
}
INSTANTIATE_TEST_SUITE_P(By, OciRuntime, kRuntimes, name_of);
INSTANTIATE_TEST_SUITE_P(By, RestoredAtOnce, kRuntimes, name_of);

}  // namespace
}  // namespace sluice::vm_test
