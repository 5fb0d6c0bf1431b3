// SPDX-License-Identifier: MIT
// Which local GPU a render file is opened on. Run by vamdgpu-run on a machine with two GPUs; skipped where
// there is no such machine.
#include "plugin/restore/gpus/gpu_match.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/temp_dir.h"

namespace sluice::plugin {
namespace {

class GpuMatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto local = kfd::read_topology();
    if (!local.ok()) GTEST_SKIP() << local.error().what;
    for (const kfd::Node& node : local->nodes) (node.is_gpu() ? gpus_ : others_).push_back(node);
    if (gpus_.size() != 2) GTEST_SKIP() << "two GPUs are needed";
  }

  // Of a process that has seen the first GPU alone, by the id that it knows of it.
  KfdImage image_of_first(std::uint32_t id) const {
    KfdImage image;
    image.topology.nodes = others_;
    image.topology.nodes.push_back(gpus_[0]);
    image.topology.nodes.back().gpu_id = id;
    return image;
  }
  static RenderImage image_of(const kfd::Node& gpu) {
    RenderImage image;
    image.gpu_id = gpu.gpu_id;
    image.minor = gpu.drm_render_minor;
    return image;
  }

  std::vector<kfd::Node> gpus_, others_;
};

TEST_F(GpuMatchTest, ARenderFileComesBackOnTheGpuThatStandsForItsOwn) {
  GpuMatch match;
  ASSERT_TRUE(match.match(image_of_first(gpus_[1].gpu_id), {}).ok());
  const auto found = match.gpu_of(image_of(gpus_[0]));
  ASSERT_TRUE(found.ok()) << found.error().what;
  EXPECT_EQ((*found)->drm_render_minor, match.local_gpu(gpus_[1].gpu_id).value()->drm_render_minor);
}

// As in images of CRIU 3.17 to 4.2. Its gpu_id is the one by which the process knows the GPU.
TEST_F(GpuMatchTest, OneThatDoesNotTellItsMinorComesBackOnTheGpuThatTheProcessKnows) {
  GpuMatch match;
  KfdImage kfd = image_of_first(gpus_[1].gpu_id);  // the first by what is the second's own id
  ASSERT_TRUE(match.match(kfd, {}).ok());
  RenderImage image = image_of(gpus_[1]);
  image.minor = RenderImage::kUnknownMinor;
  const auto found = match.gpu_of(image);
  ASSERT_TRUE(found.ok()) << found.error().what;
  EXPECT_EQ(*found, match.local_gpu(gpus_[1].gpu_id).value());
  image.gpu_id = gpus_[0].gpu_id;  // not among those of the process: the one of the same id here
  ASSERT_TRUE(match.gpu_of(image).ok());
  EXPECT_EQ((*match.gpu_of(image))->gpu_id, gpus_[0].gpu_id);
  image.gpu_id = 1;
  EXPECT_EQ(match.gpu_of(image).error().err, ENODEV);
}

// The process knows the first by what is the second's own id.
TEST_F(GpuMatchTest, OneOfAGpuThatTheKfdsProcessDidNotSeeComesBackOnThatGpu) {
  for (const std::uint32_t known_as : {gpus_[0].gpu_id, gpus_[1].gpu_id}) {
    GpuMatch match;
    ASSERT_TRUE(match.match(image_of_first(known_as), {}).ok());
    const auto found = match.gpu_of(image_of(gpus_[1]));
    ASSERT_TRUE(found.ok()) << found.error().what;
    EXPECT_EQ((*found)->drm_render_minor, gpus_[1].drm_render_minor);
  }
}

TEST_F(GpuMatchTest, OneOfAGpuThatIsNotHereIsRefused) {
  GpuMatch match;
  ASSERT_TRUE(match.match(image_of_first(gpus_[0].gpu_id), {}).ok());
  RenderImage image = image_of(gpus_[1]);
  image.gpu_id = 1;
  EXPECT_EQ(match.gpu_of(image).error().err, ENODEV);
}

TEST_F(GpuMatchTest, AProcessAloneGetsAGpuOfAnotherId) {
  GpuMatch match;
  ASSERT_TRUE(match.match(image_of_first(4711), {}).ok());
  EXPECT_TRUE(match.local_gpu(4711).ok());
  match.allocated({{gpus_[0].drm_render_minor, 1U << 20}});  // there is no tree to tell
}

TEST_F(GpuMatchTest, AGpuThatTheImageDoesNotHaveHasNoneHere) {
  GpuMatch match;
  ASSERT_TRUE(match.match(image_of_first(gpus_[0].gpu_id), {}).ok());
  const auto found = match.local_gpu(1);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().err, ENODEV);
  EXPECT_NE(found.error().what.find("[SL-R15]"), std::string::npos) << found.error().what;
}

// Processes of one tree.
class TreeMatchTest : public GpuMatchTest {
 protected:
  void SetUp() override {
    GpuMatchTest::SetUp();
    auto made = TreeMatch::make();
    ASSERT_TRUE(made.ok()) << made.error().what;
    tree_ = std::move(*made);
  }

  // The local GPU that a process of the tree gets for the first, which it knows by `id`; 0 where it is
  // refused.
  std::uint32_t gpu_of_process(std::uint32_t id, bool shares_memory = false) {
    KfdImage image = image_of_first(id);
    if (shares_memory) {
      BoEntry bo;
      bo.shared = 1;
      image.bos.push_back(bo);
    }
    GpuMatch match;
    match.join(tree_.get(), 0);
    if (!match.match(image, {}).ok()) return 0;
    return match.local_gpu(id).value()->gpu_id;
  }

  // In another process, as another restore.
  static int in_another_process(const std::function<int()>& body) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(body());
    int status = -1;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status)) << status;
    return WEXITSTATUS(status);
  }
  void open_ledger() {
    auto ledger = VramLedger::open(ledger_path());
    ASSERT_TRUE(ledger.ok()) << ledger.error().what;
    tree_->ledger = std::move(*ledger);
  }
  std::string ledger_path() const { return directory_.path() + "/ledger"; }
  // MiB that the tree has reserved, as another restore sees it.
  int reserved_mib(std::uint32_t gpu_id) const {
    return in_another_process([&] {
      const auto ledger = VramLedger::open(ledger_path());
      return ledger ? static_cast<int>((*ledger)->reserved_by_others(gpu_id) >> 20) : 255;
    });
  }

  const test::TempDir directory_;
  std::unique_ptr<TreeMatch> tree_;
};

TEST_F(TreeMatchTest, ProcessesThatKnowOneGpuByDifferentIdsGetOne) {
  EXPECT_EQ(gpu_of_process(gpus_[1].gpu_id), gpus_[1].gpu_id);
  EXPECT_EQ(gpu_of_process(gpus_[0].gpu_id), gpus_[1].gpu_id);
  EXPECT_EQ(gpu_of_process(4711), gpus_[1].gpu_id);
}

TEST_F(TreeMatchTest, OneThatCannotFollowIsMatchedByItselfUnlessItSharesMemory) {
  tree_->agree({gpus_[0].drm_render_minor, 4711});
  EXPECT_EQ(gpu_of_process(gpus_[0].gpu_id, true), 0U);
  EXPECT_EQ(gpu_of_process(gpus_[0].gpu_id), gpus_[0].gpu_id);
}

TEST_F(TreeMatchTest, TheOneThatSawMostGpusDecidesForAll) {
  tree_->gpus.widest.nodes = others_;
  for (const kfd::Node& gpu : gpus_) tree_->gpus.widest.nodes.push_back(gpu);
  std::swap(tree_->gpus.widest.nodes[others_.size()].gpu_id,
            tree_->gpus.widest.nodes[others_.size() + 1].gpu_id);
  EXPECT_EQ(gpu_of_process(gpus_[0].gpu_id), gpus_[1].gpu_id);
  EXPECT_EQ(tree_->agreed().size(), 2U);
}

TEST_F(TreeMatchTest, TheUsersMapComesFirst) {
  tree_->gpus.map = {{gpus_[0].drm_render_minor, gpus_[1].gpu_id}};
  EXPECT_EQ(gpu_of_process(gpus_[0].gpu_id), gpus_[1].gpu_id);
}

TEST_F(TreeMatchTest, AGpuThatAnotherOfTheDumpHasIsNotTaken) {
  tree_->agree({gpus_[1].drm_render_minor, gpus_[0].gpu_id});
  EXPECT_EQ(gpu_of_process(gpus_[0].gpu_id), gpus_[1].gpu_id);
}

TEST_F(TreeMatchTest, ARenderFileGoesWhereTheOthersAre) {
  tree_->agree({gpus_[1].drm_render_minor, gpus_[0].gpu_id});
  GpuMatch match;
  match.join(tree_.get(), 0);
  const auto found = match.gpu_of(image_of(gpus_[1]));
  ASSERT_TRUE(found.ok()) << found.error().what;
  EXPECT_EQ((*found)->gpu_id, gpus_[0].gpu_id);
}

TEST_F(TreeMatchTest, ARenderFileThatComesFirstDecidesForTheOthers) {
  for (const bool has_ledger : {false, true}) {
    tree_ = TreeMatch::make().value();
    if (has_ledger) open_ledger();
    GpuMatch match;
    match.join(tree_.get(), 0);
    const auto found = match.gpu_of(image_of(gpus_[0]));
    ASSERT_TRUE(found.ok()) << found.error().what;
    EXPECT_EQ((*found)->gpu_id, gpus_[0].gpu_id);
    EXPECT_EQ(tree_->agreed(), (std::vector<kfd::MappedGpu>{{gpus_[0].drm_render_minor, gpus_[0].gpu_id}}));
  }
}

// Alone or with others that agree on another GPU.
TEST_F(TreeMatchTest, OneThatNoGpuFitsIsRefused) {
  KfdImage image = image_of_first(gpus_[0].gpu_id);
  ++image.topology.nodes.back().gfx_target_version;
  ++image.topology.nodes.back().simd_count;
  ++image.topology.nodes.back().device_id;
  for (const bool others : {false, true}) {
    if (others) tree_->agree({gpus_[1].drm_render_minor, gpus_[1].gpu_id});
    GpuMatch match;
    match.join(tree_.get(), 0);
    const auto result = match.match(image, {});
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().err, ENODEV);
    EXPECT_FALSE(match.matched());
  }
}

// Though its VRAM is still free.
TEST_F(TreeMatchTest, AGpuThatAnotherRestoreIsAboutToFillIsNotTaken) {
  std::array<int, 2> begun{}, ended{};
  ASSERT_EQ(::pipe(begun.data()), 0);
  ASSERT_EQ(::pipe(ended.data()), 0);
  const pid_t other = ::fork();
  if (other == 0) {
    ::close(ended[1]);
    const auto ledger = VramLedger::open(ledger_path());
    if (ledger) {
      const FutexLocked locked = (*ledger)->lock();
      (*ledger)->reserve(gpus_[0].gpu_id, std::uint64_t{1} << 30);
    }
    char byte = ledger ? 1 : 0;
    (void)!::write(begun[1], &byte, 1);
    (void)!::read(ended[0], &byte, 1);
    ::_exit(0);
  }
  char began = 0;
  EXPECT_EQ(::read(begun[0], &began, 1), 1);
  EXPECT_EQ(began, 1);
  ASSERT_NO_FATAL_FAILURE(open_ledger());
  tree_->gpus.need = {{gpus_[0].drm_render_minor, 8U << 20}};
  EXPECT_EQ(gpu_of_process(gpus_[0].gpu_id), gpus_[1].gpu_id);
  for (const int fd : {begun[0], begun[1], ended[0], ended[1]}) ::close(fd);
  EXPECT_EQ(::waitpid(other, nullptr, 0), other);
}

TEST_F(TreeMatchTest, WhatIsAllocatedIsReservedNoLonger) {
  ASSERT_NO_FATAL_FAILURE(open_ledger());
  const std::uint32_t minor = gpus_[0].drm_render_minor;
  tree_->gpus.need = {{minor, 8U << 20}};
  GpuMatch match;
  match.join(tree_.get(), 0);
  ASSERT_TRUE(match.match(image_of_first(gpus_[0].gpu_id), {}).ok());
  match.allocated({{minor, 0}, {minor + 60, 8U << 20}});  // nothing, and on a GPU that the images do not have
  EXPECT_EQ(reserved_mib(gpus_[0].gpu_id), 8);
  match.allocated({{minor, 3U << 20}});
  EXPECT_EQ(reserved_mib(gpus_[0].gpu_id), 5);
}

TEST_F(TreeMatchTest, WhoDoesNotFollowTheTreeAllocatesNothingOfItsReservation) {
  ASSERT_NO_FATAL_FAILURE(open_ledger());
  const std::uint32_t minor = gpus_[0].drm_render_minor;
  tree_->agree({minor, 4711});
  tree_->ledger->reserve(gpus_[0].gpu_id, 8U << 20);
  GpuMatch match;
  match.join(tree_.get(), 0);
  ASSERT_TRUE(match.match(image_of_first(gpus_[0].gpu_id), {}).ok());
  match.allocated({{minor, 8U << 20}});
  EXPECT_EQ(reserved_mib(gpus_[0].gpu_id), 8);
}

// Where the user wants it, and its own has room.
TEST_F(TreeMatchTest, TheUsersMapComesBeforeTheRoomOfItsOwnGpu) {
  tree_->gpus.map = {{gpus_[0].drm_render_minor, gpus_[1].gpu_id}};
  tree_->gpus.need = {{gpus_[0].drm_render_minor, 1U << 20}};
  EXPECT_EQ(gpu_of_process(gpus_[0].gpu_id), gpus_[1].gpu_id);
}

TEST_F(TreeMatchTest, VramThatIsMissingIsNamedWithWhatWouldDo) {
  GpuMatch match;
  match.join(tree_.get(), 0);
  ASSERT_TRUE(match.match(image_of_first(gpus_[0].gpu_id), {}).ok());
  const std::uint32_t minor = gpus_[0].drm_render_minor;
  const Error kernels{ENOMEM, "the kernel's words"};
  const Error full = match.explain(kernels, {{minor, 10U << 20}}, {{gpus_[0].gpu_id, 4U << 20}});
  EXPECT_TRUE(has_id(full.what)) << "host memory would not help";
  EXPECT_NE(full.what.find("6.0 MiB are missing"), std::string::npos) << full.what;
  EXPECT_NE(full.what.find("no other matching GPU here"), std::string::npos) << full.what;
  const Error other = match.explain(kernels, {{minor, 10U << 20}},
                                    {{gpus_[0].gpu_id, 4U << 20}, {gpus_[1].gpu_id, 12U << 20}});
  EXPECT_NE(other.what.find(kfd::gpu_id_text(gpus_[1].gpu_id)), std::string::npos) << other.what;
  const Error both = match.explain(kernels, {{minor, 10U << 20}},
                                   {{gpus_[0].gpu_id, 4U << 20}, {gpus_[1].gpu_id, 9U << 20}});
  EXPECT_NE(both.what.find("no other matching GPU here"), std::string::npos) << both.what;
  // There seemed to be room: the kernel's words stay.
  const Error refused = match.explain(kernels, {{minor, 10U << 20}}, {{gpus_[0].gpu_id, 12U << 20}});
  EXPECT_TRUE(has_id(refused.what));
  EXPECT_NE(refused.what.find(kernels.what), std::string::npos) << refused.what;
  EXPECT_TRUE(has_id(match.explain(kernels, {{minor, 10U << 20}}, {}).what));
  // No VRAM was asked for, or it is something else.
  EXPECT_EQ(match.explain(kernels, {}, {}).topic, Topic::Unknown);
  EXPECT_EQ(match.explain(kernels, {{minor, 0}, {minor + 60, 10U << 20}}, {}).what, kernels.what);
  EXPECT_EQ(match.explain(Error{EINVAL, "other"}, {{minor, 10U << 20}}, {}).what, "other");
}

}  // namespace
}  // namespace sluice::plugin
