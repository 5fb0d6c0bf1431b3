// SPDX-License-Identifier: MIT
// States of queues and memory that few jobs have: each is as before after a dump and a restore
// (docs/internals/differences.md).
#include <fcntl.h>
#include <libdrm/amdgpu_drm.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <system_error>

#include "base/unique_fd.h"
#include "minors.h"
#include "mqds.h"
#include "scenario.h"

namespace sluice::vm_test {
namespace {

class RareQueues : public Scenario {
 protected:
  void start_on_two_gpus(const Strings& more = {}) {
    load();
    Strings options = {"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--run-queues"};
    options.insert(options.end(), more.begin(), more.end());
    ASSERT_NO_FATAL_FAILURE(start_subject(options));
    ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  }
  void expect_good_end() {
    ASSERT_NO_FATAL_FAILURE(expect_queues_run());
    ASSERT_NO_FATAL_FAILURE(expect_whole());
    EXPECT_EQ(subject_->quit(), 0);
  }
};

TEST_F(RareQueues, KeepTheirMaskOfComputeUnitsAndTheirPriority) {
  ASSERT_NO_FATAL_FAILURE(start_on_two_gpus({"--pm4", "--priority", "15", "--cu-mask", "305419896"}));
  const std::vector<QueueTraits> before = queue_traits(subject_->pid());
  ASSERT_EQ(before.size(), 4U);
  for (const QueueTraits& queue : before) {
    EXPECT_NE(queue.cu_masks[0], ~0U);
    EXPECT_EQ(queue.pipe_priority, 2U);  // the highest of three
  }
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(restore());
  EXPECT_EQ(queue_traits(subject_->pid()), before);
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());  // with UPDATE_QUEUE of each
  EXPECT_EQ(queue_traits(subject_->pid()), before);
  ASSERT_NO_FATAL_FAILURE(expect_good_end());
}

TEST_F(RareQueues, ThatAreSwitchedOffStaySoWithTheirWork) {
  ASSERT_NO_FATAL_FAILURE(start_on_two_gpus());
  ASSERT_EQ(subject_->ask("queue-share 0"), "ok queue-share 0");
  const auto expect_standing = [this] {
    EXPECT_EQ(subject_->ask("queue-progress").rfind("ok queue-progress stands", 0), 0U);
  };
  expect_standing();
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(restore());
  expect_standing();
  ASSERT_EQ(subject_->ask("queue-share 100"), "ok queue-share 100");
  ASSERT_NO_FATAL_FAILURE(expect_good_end());
}

TEST_F(RareQueues, OfPm4PacketsGoOnInTheMiddleOfTheirWork) {
  ASSERT_NO_FATAL_FAILURE(start_on_two_gpus({"--pm4"}));
  ASSERT_EQ(machine().process(subject_->pid()).value_or(ProcessSeen()).queues.size(), 6U);
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_NO_FATAL_FAILURE(restore());
  ASSERT_NO_FATAL_FAILURE(expect_good_end());
}

class RareMemory : public Scenario {
 protected:
  void SetUp() override {
    Scenario::SetUp();
    if (!kernel_has_svm()) GTEST_SKIP() << "Debian builds this kernel without SVM";
  }
  // Pages that moved into a GPU's VRAM.
  std::uint64_t pages_moved_in(std::uint32_t gpu_id) const {
    const std::filesystem::path process = "/sys/class/kfd/kfd/proc/" + std::to_string(subject_->pid());
    return std::stoull(read_file(process / ("counters_" + std::to_string(gpu_id)) / "page_in"));
  }
};

TEST_F(RareMemory, RetryFaultsStayOn) {
  load();
  ASSERT_NO_FATAL_FAILURE(
      start_subject({"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--run-queues", "--svm", "--xnack"}));
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  ASSERT_NO_FATAL_FAILURE(expect_survives());
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  EXPECT_EQ(subject_->quit(), 0);
}

// Linux splits no huge page while this lives, because none is made.
class SmallPages {
 public:
  SmallPages() { write_file(kSwitch, "never"); }
  ~SmallPages() { write_file(kSwitch, "always"); }
  SmallPages(const SmallPages&) = delete;
  SmallPages& operator=(const SmallPages&) = delete;

 private:
  static constexpr const char* kSwitch = "/sys/kernel/mm/transparent_hugepage/enabled";
};

// CRIU's reading moves the pages to system memory, and RESUME moves them back. In huge pages RESUME may be
// EAGAIN (docs/user/limitations.md).
TEST_F(RareMemory, SvmRangesInVramAreThereAgain) {
  load();
  ASSERT_NO_FATAL_FAILURE(
      start_subject({"--gpus", "2", "--vram", "4M", "--gtt", "1M", "--run-queues", "--svm"}));
  ASSERT_EQ(subject_->ask("svm-prefetch"), "ok svm-prefetch");
  for (const std::uint32_t gpu : machine().gpu_ids()) EXPECT_GT(pages_moved_in(gpu), 0U);
  ASSERT_NO_FATAL_FAILURE(dump());
  const SmallPages small_pages;
  ASSERT_NO_FATAL_FAILURE(restore());
  for (const std::uint32_t gpu : machine().gpu_ids()) EXPECT_GT(pages_moved_in(gpu), 0U);
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  EXPECT_EQ(subject_->quit(), 0);
}

class Evicted : public Scenario {
 protected:
  // BOs that the first GPU has moved out of VRAM so far.
  static std::uint64_t evictions() {
    const std::string node = "/dev/dri/renderD" + std::to_string(render_minors().at(0));
    const UniqueFd file(::open(node.c_str(), O_RDWR | O_CLOEXEC));
    std::uint64_t number = 0;
    drm_amdgpu_info args{};
    args.return_pointer = reinterpret_cast<std::uintptr_t>(&number);
    args.return_size = sizeof number;
    args.query = AMDGPU_INFO_NUM_EVICTIONS;
    if (!file || ::ioctl(file.get(), DRM_IOCTL_AMDGPU_INFO, &args) != 0)
      throw std::system_error(errno, std::generic_category(), node);
    return number;
  }
};

// Another process fills the GPU's memory while the engine copies.
TEST_F(Evicted, WhileADumpRunsTheJobIsDumpedWholeAndItsQueuesRun) {
  if (Card::have_dies() && kernel_version() >= KernelVersion{7, 2})
    GTEST_SKIP() << "Linux 7.2 warns in its own restore of a die's evicted memory, and loses a page";
  load({.number = 1, .small = true});
  ASSERT_NO_FATAL_FAILURE(start_subject({"--gpus", "1", "--vram", "16M", "--gtt", "1M", "--run-queues"}));
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  const std::uint64_t before = evictions(), copies = machine().copies_begun(0);
  machine().set_engine_rate(0, 512 << 10);  // it would take a minute and a half
  const pid_t criu = vm_test::start(
      criu_->command("dump", images(), {"--leave-running", "-t", std::to_string(subject_->pid())}));
  ASSERT_TRUE(eventually([this, copies] { return machine().copies_begun(0) > copies; }));
  GuestSubject neighbour(scratch() / "neighbour");
  const std::string bytes = std::to_string((machine().free_vram(0) >> 20) + 8) + "M";
  Launch launch;
  launch.arguments = {(settings().programs / "gpu-subject").string(), "--control",
                      (scratch() / "neighbour").string()};
  const Strings one_bo = {"--render-only", "--gpus", "1", "--gem-handles", "1", "--gem-bytes", bytes};
  launch.arguments.insert(launch.arguments.end(), one_bo.begin(), one_bo.end());
  const pid_t filler = vm_test::start(launch);
  EXPECT_TRUE(eventually([before] { return evictions() > before; }));
  EXPECT_TRUE(is_alive(criu)) << "the dump ended too early";
  machine().set_engine_rate(0, 0);
  EXPECT_EQ(wait_for(criu), 0);
  const std::string ready = neighbour.meet();
  EXPECT_EQ(ready.rfind("ready", 0), 0U) << ready;
  ASSERT_NO_FATAL_FAILURE(expect_queues_run());
  ASSERT_NO_FATAL_FAILURE(expect_whole());
  EXPECT_EQ(neighbour.ask("quit"), "ok quit");
  EXPECT_EQ(wait_for(filler), 0);
  EXPECT_EQ(subject_->quit(), 0);
}

}  // namespace
}  // namespace sluice::vm_test
