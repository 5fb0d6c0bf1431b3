// SPDX-License-Identifier: MIT
// BOs that were allocated through render nodes, in four hosts: they come back under their handles, mapped
// where they were, with their contents; with and without a kernel that changes handles.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/unique_fd.h"
#include "images/files/files.h"
#include "images/metadata.h"
#include "plugin_test.h"
#ifdef SEAM_LIBRARY
#include "seam_plan.h"
#endif
#include "lookalike/task_tree.h"
#include "support/flip_byte.h"

namespace sluice::plugin_test {
namespace {

using lookalike::TaskTree;

const Strings kHandlesWithGaps = {"--gem-handles", "1,3,70,4096"};

class RenderTest : public PluginTest {
 protected:
  void start_with(const Strings& options) {
    Strings arguments = {"--vram", "4M", "--gtt", "1M", "--svm-context"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const std::string ready = scene_.start_subject(arguments);
    ASSERT_TRUE(ready.starts_with("ready")) << ready;
    ASSERT_TRUE(heard("check").starts_with("ok check")) << last_;
  }

  void let_the_kernel_change_handles() {
    vamdgpu::MachineOptions options = small_machine();
    options.change_handle = true;
    scene_.move_to(options);
  }

  // As upstream's plugin writes them.
  void make_images_upstreams() {
    const UniqueFd directory(::open(scene_.images().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (const std::string& name : images("amdgpu-kfd-")) {
      auto image = unpack_kfd_image(read_image(directory.get(), name).value(), name, {}).value();
      image.dump_id.reset();
      ASSERT_TRUE(write_image(directory.get(), name, pack_kfd_image(image, {}), false).ok());
    }
    for (const std::string& name : images("amdgpu-renderD-")) {
      auto image = unpack_render_image(read_image(directory.get(), name).value(), name, {}).value();
      image.dump_id.reset();
      image.pid.reset();
      image.kfd_acquired.reset();
      ASSERT_TRUE(write_image(directory.get(), name, pack_render_image(image, {}), false).ok());
    }
  }

  // Twice, because the second dump is of a restored process.
  void dump_and_restore_twice() {
    for (int generation = 0; generation < 2; ++generation) {
      ASSERT_NO_FATAL_FAILURE(dump());
      ASSERT_NO_FATAL_FAILURE(restore_and_check());
    }
    EXPECT_EQ(heard("quit"), "ok quit");
  }
};

TEST_P(RenderTest, HandlesWithGapsComeBackByPlaceholders) {
  ASSERT_NO_FATAL_FAILURE(start_with(kHandlesWithGaps));
  dump_and_restore_twice();
}

// KFD has no BO on the second GPU by which its own file there could be told from the other.
TEST_P(RenderTest, TwoFilesOfAGpuWithoutKfdMemoryStayTwo) {
  ASSERT_NO_FATAL_FAILURE(start_with(
      {"--one-bo", "1M", "--no-queues", "--no-userptr", "--second-render", "--gem-handles", "2,5"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  const int status = scene_.restore(version());
  const std::string log = scene_.log();
  if (hooks() < 12) {
    EXPECT_NE(status, 0);
    EXPECT_NE(log.find("through several files"), std::string::npos) << log;
    return;
  }
  ASSERT_EQ(status, 0) << log;
  EXPECT_NE(log.find("does not say whether the KFD uses this file of renderD129"), std::string::npos) << log;
  EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
}

TEST_P(RenderTest, HandlesWithGapsComeBackWhereTheKernelChangesThem) {
  let_the_kernel_change_handles();
  ASSERT_NO_FATAL_FAILURE(start_with(kHandlesWithGaps));
  ASSERT_NO_FATAL_FAILURE(dump());
  scene_.control().clear_trace();
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  EXPECT_EQ(traced("DRM_GEM_CHANGE_HANDLE"), 6U);
  expect_whole();
}

// How its pixels lie: without, who gets such a BO from the process sees a scrambled image. Three of the four
// have any.
// Where Mesa's are. The kernel tells of such an address what it does not take.
TEST_P(RenderTest, BosInTheUpperHalfOfTheAddressSpaceComeBack) {
  ASSERT_NO_FATAL_FAILURE(start_with({"--gem-handles", "1,3,70", "--gem-high"}));
  dump_and_restore_twice();
}

TEST_P(RenderTest, MetadataComesBackToTheBosThatHaveAny) {
  ASSERT_NO_FATAL_FAILURE(start_with({"--gpus", "1", "--gem-handles", "1,2,3,4"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  scene_.control().clear_trace();
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  EXPECT_EQ(traced("DRM_GEM_METADATA"), 3U);
  expect_whole();
}

TEST_P(RenderTest, ABoWhoseMetadataCannotBeHadIsNamed) {
  ASSERT_NO_FATAL_FAILURE(start_with({"--gpus", "1", "--gem-handles", "1,2,3"}));
  scene_.control().inject({.device = vamdgpu::On::Render, .nr = 0x46, .error = ENOMEM, .skip = 1});
  EXPECT_EQ(scene_.dump(version()), 1);
  const std::string asked = scene_.log();
  EXPECT_NE(asked.find("ask for the metadata of GEM handle 2"), std::string::npos) << asked;
  scene_.control().clear_faults();
  expect_running();
  ASSERT_NO_FATAL_FAILURE(dump());
  scene_.control().inject({.device = vamdgpu::On::Render, .nr = 0x46, .error = ENOMEM, .skip = 1});
  EXPECT_EQ(scene_.restore(version()), 1);
  const std::string set = scene_.log();
  EXPECT_NE(set.find("set the metadata of GEM handle 3"), std::string::npos) << set;
  expect_not_resumed();
  scene_.control().clear_faults();
  restore_and_check();
}

// BOs of both are mapped by the CPU, side by side.
TEST_P(RenderTest, TwoRenderFilesOfOneGpuKeepTheirOwn) {
  ASSERT_NO_FATAL_FAILURE(start_with({"--second-render", "--gem-handles", "2,5"}));
  if (hooks() >= 12) return dump_and_restore_twice();
  ASSERT_NO_FATAL_FAILURE(dump());
  EXPECT_NE(scene_.restore(version()), 0);
  EXPECT_NE(scene_.log().find("maps renderD128 through several files"), std::string::npos);
}

TEST_P(RenderTest, AProcessWithRenderNodesOnlyComesBack) {
  ASSERT_NO_FATAL_FAILURE(start_with({"--render-only", "--gem-handles", "1,3,70"}));
  dump_and_restore_twice();
}

// It is all that is left of the device: no hook is called for any file.
TEST_P(RenderTest, AProcessThatHasNothingButMapsIsRefused) {
  ASSERT_NO_FATAL_FAILURE(start_with({"--render-only", "--gem-handles", "1,3", "--close-render-after-map"}));
  EXPECT_EQ(scene_.dump(version()), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("[SL-D56]"), std::string::npos) << log;
  EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
}

// Another frozen process, with a map of a device that is no GPU, does not matter.
TEST_P(RenderTest, AProcessThatHasNothingButMapsIsRefusedAlongsideOneWithMapsOfOtherDevices) {
  ASSERT_NO_FATAL_FAILURE(start_with({"--render-only", "--gem-handles", "1,3", "--close-render-after-map"}));
  const UniqueFd zero(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  void* const map = ::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, zero.get(), 0);
  ASSERT_NE(map, MAP_FAILED);
  const pid_t other = ::fork();
  if (other == 0) {
    for (;;) ::pause();
  }
  EXPECT_EQ(scene_.dump(version(), {"--outside", std::to_string(other)}), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("[SL-D56]"), std::string::npos) << log;
  EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
  ::kill(other, SIGKILL);
  EXPECT_EQ(::waitpid(other, nullptr, 0), other);
  EXPECT_EQ(::munmap(map, 4096), 0);
}

// Who has its BOs, and what of it runs, is unknown.
TEST_P(RenderTest, AFileThatNoProcessHasIsRefused) {
  for (const char* device : {"/dev/dri/renderD128", "/dev/kfd"}) {
    SCOPED_TRACE(device);
    ASSERT_NO_FATAL_FAILURE(start_with({"--gem-handles", "1"}));
    EXPECT_EQ(scene_.dump(version(), {"--in-flight", device}), 1);
    const std::string log = scene_.log();
    EXPECT_NE(log.find("[SL-D23]"), std::string::npos) << log;
    expect_running();
  }
}

// Images of upstream's plugin do not tell whose a render file is. The tasks know the same GPUs by ids of
// their own: the first one has those of the machine that it was dumped on before.
TEST_P(RenderTest, AFileThatComesBeforeItsKfdIsMatchedByThatInImagesOfUpstreamToo) {
  scene_.variables["SLUICE_CHECKSUM"] = "off";
  TaskTree tasks(scene_);
  const Strings small = {"--vram", "1M", "--gtt", "1M", "--no-queues", "--render-first"};
  ASSERT_TRUE(tasks.add(small).starts_with("ready"));
  ASSERT_EQ(scene_.dump(version(), tasks.with_pids()), 0) << scene_.log();
  tasks.wait_until_dumped();
  vamdgpu::MachineOptions other = small_machine();
  other.gpu_ids = {0x1234, 0x4321};
  scene_.move_to(other);
  ASSERT_EQ(scene_.start_host(version(), "restore", {}).wait(), 0) << scene_.log();
  ASSERT_TRUE(tasks.meet_restored());
  ASSERT_TRUE(tasks.add(small).starts_with("ready"));
  (void)scene_.log();
  ASSERT_EQ(scene_.dump(version(), tasks.with_pids()), 0) << scene_.log();
  tasks.wait_until_dumped();
  ASSERT_NO_FATAL_FAILURE(make_images_upstreams());
  ASSERT_EQ(scene_.start_host(version(), "restore", {}).wait(), 0) << scene_.log();
  ASSERT_TRUE(tasks.meet_restored());
  EXPECT_EQ(tasks.what_is_not_whole(), "");
}

// Without a KFD process the image does not say what its GPUs were like.
TEST_P(RenderTest, AProcessWithRenderNodesOnlyIsRefusedOnOtherGpus) {
  ASSERT_NO_FATAL_FAILURE(start_with({"--render-only", "--gem-handles", "1,3"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  vamdgpu::MachineOptions other = small_machine();
  other.gpu_ids = {0x1234, 0x4321};
  scene_.move_to(other);
  EXPECT_EQ(scene_.restore(version()), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("[SL-R16]"), std::string::npos) << log;
  expect_not_resumed();
  scene_.move_to(small_machine());
  restore_and_check();
}

// Every GPU's file is acquired for it, and none of them mapped: what is kept for maps has to go by itself.
TEST_P(RenderTest, AProcessWithAnOpenKfdAndNothingElseComesBackWithNothingElse) {
  ASSERT_NO_FATAL_FAILURE(start_with({"--kfd-only"}));
  dump_and_restore_twice();
}

// CRIU would give it to the wrong process, and the KFD of the other one another file. That is known before
// anything flows.
TEST_P(RenderTest, TheKfdsFileThatAnEarlierProcessHoldsTooIsRefused) {
  TaskTree tasks(scene_);
  ASSERT_TRUE(tasks.add({"--render-only", "--lend-render"}).starts_with("ready"));
  ASSERT_EQ(scene_.dump(version(), tasks.with_pids({"--leave-running"})), 0) << scene_.log();
  const std::set<std::string> earlier = images("amdgpu-");
  (void)scene_.log();
  const std::string ready = tasks.add(
      {"--vram", "1M", "--gtt", "1M", "--no-queues", "--render-from", std::to_string(tasks.front().pid())});
  ASSERT_TRUE(ready.starts_with("ready")) << ready;
  EXPECT_EQ(scene_.dump(version(), tasks.with_pids()), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("the file that the KFD uses for process"), std::string::npos) << log;
  EXPECT_EQ(images("amdgpu-"), earlier);
  EXPECT_EQ(tasks.what_is_not_whole(), "");
}

TEST_P(RenderTest, ThousandsOfSmallBosComeBack) {
  const std::size_t count = version() == std::string("4.2") ? 3000 : 300;
  ASSERT_NO_FATAL_FAILURE(
      start_with({"--gpus", "1", "--gem-handles", "count:" + std::to_string(count), "--gem-bytes", "4K"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  EXPECT_EQ(images("amdgpu-drm-pages-").size(), count);
  EXPECT_EQ(images("amdgpu-sums-drm-").size(), 1U);
  restore_and_check();
}

TEST_P(RenderTest, ABoLargerThanTheStagingMemoryComesBack) {
  scene_.variables["SLUICE_STAGING_SIZE"] = "4M";
  ASSERT_NO_FATAL_FAILURE(start_with({"--gpus", "1", "--gem-handles", "3", "--gem-bytes", "37M"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  const std::set<std::string> pages = images("amdgpu-drm-pages-");
  ASSERT_EQ(pages.size(), 1U);
  EXPECT_EQ(std::filesystem::file_size(scene_.images() / *pages.begin()), 8 + 37 * kMiB);
  restore_and_check();
}

TEST_P(RenderTest, RestoresInTheTaskWhenParallelIsOff) {
  scene_.variables["SLUICE_PARALLEL"] = "off";
  ASSERT_NO_FATAL_FAILURE(start_with(kHandlesWithGaps));
  dump_and_restore_twice();
}

TEST_P(RenderTest, LeaveRunningLeavesEverythingAsItWas) {
  ASSERT_NO_FATAL_FAILURE(start_with(kHandlesWithGaps));
  ASSERT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
  expect_running();
  EXPECT_EQ(heard("quit"), "ok quit");
}

// Work that was submitted before the process was stopped may still write.
TEST_P(RenderTest, BosAreWaitedForBeforeTheyAreExported) {
  ASSERT_NO_FATAL_FAILURE(start_with({"--gpus", "1", "--gem-handles", "1,2"}));
  scene_.control().clear_trace();
  ASSERT_NO_FATAL_FAILURE(dump());
  EXPECT_EQ(traced("DRM_GEM_WAIT_IDLE"), 2U);
}

// It does, until it has ended.
TEST_P(RenderTest, ABoOfARunningJobIsNotExportedBeforeTheJobEnds) {
  ASSERT_NO_FATAL_FAILURE(start_with({"--gpus", "1", "--gem-handles", "1,2"}));
  scene_.control().hang_fence(0, scene_.control().fences_made(0) + 1);
  ASSERT_EQ(heard("submit"), "ok submit");
  // The virtual engine is a thread of the subject: it has to have the job before the subject is stopped.
  while (scene_.control().faults_hit() == 0) (void)::sched_yield();
  scene_.control().clear_trace();
  Program host = scene_.start_host(version(), "dump", {});
  while (traced("DRM_GEM_WAIT_IDLE") == 0 && !host.has_ended()) (void)::sched_yield();
  EXPECT_EQ(traced("DRM_PRIME_HANDLE_TO_FD"), 0U);
  scene_.control().clear_faults();
  scene_.control().release_hung_fences();
  ASSERT_EQ(host.wait(), 0) << scene_.log();
  EXPECT_GT(traced("DRM_PRIME_HANDLE_TO_FD"), 0U);
  scene_.wait_until_subject_is_gone();
  restore_and_check();
}

TEST_P(RenderTest, ACorruptBlockIsFoundAndNamed) {
  ASSERT_NO_FATAL_FAILURE(start_with({"--gpus", "1", "--gem-handles", "1,2,3"}));
  ASSERT_NO_FATAL_FAILURE(dump());
  const std::string name = *images("amdgpu-drm-pages-").rbegin();
  test::flip_byte(scene_.images() / name, 3000);
  EXPECT_NE(scene_.restore(version()), 0);
  const std::string log = scene_.log();
  EXPECT_NE(log.find(name), std::string::npos) << log;
  expect_not_resumed();
  test::flip_byte(scene_.images() / name, 3000);
  restore_and_check();
}

// The process is told by name, and runs on.
TEST_P(RenderTest, BosThatCannotBeSavedAreRefused) {
  struct Odd {
    const char* kind;
    const char* why;
  };
  for (const Odd& odd : {Odd{"always-valid", "GEM handle 1 was created as always valid"},
                         Odd{"encrypted", "GEM handle 1 is encrypted"},
                         Odd{"userptr", "GEM handle 1 is the process's own memory (userptr)"}}) {
    SCOPED_TRACE(odd.kind);
    ASSERT_NO_FATAL_FAILURE(start_with({"--odd-gem", odd.kind}));
    EXPECT_EQ(scene_.dump(version()), 1);
    const std::string log = scene_.log();
    EXPECT_NE(log.find(odd.why), std::string::npos) << log;
    EXPECT_TRUE(images("amdgpu-").empty());
    ASSERT_NO_FATAL_FAILURE(expect_running());
    EXPECT_EQ(heard("quit"), "ok quit");
  }
}

TEST_P(RenderTest, AKernelThatDoesNotListBosIsToldOfOnce) {
  vamdgpu::MachineOptions options = small_machine();
  options.list_handles = false;
  scene_.move_to(options);
  ASSERT_NO_FATAL_FAILURE(start_with({"--second-render"}));
  ASSERT_EQ(scene_.dump(version()), 0);
  const std::string log = scene_.log();
  const std::string said = "this kernel does not list the BOs of render nodes";
  ASSERT_NE(log.find(said), std::string::npos) << log;
  EXPECT_EQ(log.find(said), log.rfind(said)) << log;
  scene_.wait_until_subject_is_gone();
  restore_and_check();
}

// All that KFD has on the GPU was imported into both files, which such a kernel does not tell: each could be
// the one that KFD uses.
TEST_P(RenderTest, TwoFilesThatMayBothMapKfdMemoryStayTwo) {
  vamdgpu::MachineOptions options = small_machine();
  options.list_handles = false;
  scene_.move_to(options);
  const std::string ready = scene_.start_subject({"--vram", "0", "--gtt", "0", "--no-queues", "--no-userptr",
                                                  "--no-events", "--share", "kfd", "--second-render"});
  ASSERT_TRUE(ready.starts_with("ready")) << ready;
  const std::uint32_t files = scene_.control().counts().render_files;
  ASSERT_NO_FATAL_FAILURE(dump());
  ASSERT_EQ(scene_.restore(version()), 0) << scene_.log();
  const std::string log = scene_.log();
  EXPECT_NE(log.find("does not say whether the KFD uses this file of renderD128"), std::string::npos) << log;
  EXPECT_EQ(scene_.control().counts().render_files, files);
}

#ifdef SEAM_LIBRARY
// Which of them run, and who else has them, is known of all files of the tree, or not at all.
TEST_P(RenderTest, FilesThatCannotBeTakenFailTheDump) {
  ASSERT_NO_FATAL_FAILURE(start_with({"--render-only", "--gem-handles", "1"}));
  SeamPlan plan(scene_);
  plan->disarm();
  ASSERT_EQ(scene_.dump(version(), {"--leave-running"}), 0) << scene_.log();
  ASSERT_TRUE(plan.fail_first("pidfd_getfd"));
  (void)scene_.log();
  EXPECT_EQ(scene_.dump(version()), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("[SL-D20]"), std::string::npos) << log;
  EXPECT_TRUE(plan->fired());
  EXPECT_TRUE(heard("check").starts_with("ok check")) << last_;
}
#endif

TEST_P(RenderTest, ADumpThatFailsLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(start_with(kHandlesWithGaps));
  scene_.control().inject(
      {.device = vamdgpu::On::Render, .nr = 0x2d, .error = ENOMEM, .skip = 3});  // PRIME_HANDLE_TO_FD
  EXPECT_NE(scene_.dump(version()), 0);
  EXPECT_TRUE(images("amdgpu-").empty());
  scene_.control().clear_faults();
  expect_running();
  ASSERT_NO_FATAL_FAILURE(dump());
  restore_and_check();
}

// That takes the kernel's own patience, so in one host.
class HungJobTest : public RenderTest {};

TEST_P(HungJobTest, AJobThatNeverEndsFailsTheDumpAndIsNamed) {
  scene_.variables["SLUICE_FENCE_TIMEOUT"] = "1";
  ASSERT_NO_FATAL_FAILURE(start_with({"--gpus", "1", "--gem-handles", "1,2"}));
  scene_.control().hang_fence(0, scene_.control().fences_made(0) + 1);
  ASSERT_EQ(heard("submit"), "ok submit");
  while (scene_.control().faults_hit() == 0) (void)::sched_yield();
  EXPECT_EQ(scene_.dump(version(), {"--timeout-ms", "0"}), 1);
  const std::string log = scene_.log();
  EXPECT_NE(log.find("[SL-D48]"), std::string::npos) << log;
  EXPECT_TRUE(images("amdgpu-").empty());
  scene_.control().clear_faults();
  scene_.control().release_hung_fences();
  expect_running();
}

INSTANTIATE_TEST_SUITE_P(Hosts, HungJobTest, ::testing::Values(kVersions[2]), name_of_version);
INSTANTIATE_TEST_SUITE_P(Hosts, RenderTest, ::testing::ValuesIn(kVersionsOfLongSuites), name_of_version);

}  // namespace
}  // namespace sluice::plugin_test
