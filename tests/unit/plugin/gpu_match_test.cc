// SPDX-License-Identifier: MIT
// Which local GPU a render file is opened on. Run by vamdgpu-run on a machine with two GPUs; skipped where
// there is no such machine.
#include "plugin/restore/gpus/gpu_match.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

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
  kfd::KfdImage image_of_first(std::uint32_t id) const {
    kfd::KfdImage image;
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
  kfd::KfdImage kfd = image_of_first(gpus_[1].gpu_id);  // the first by what is the second's own id
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
    kfd::KfdImage image = image_of_first(id);
    if (shares_memory) {
      kfd::BoEntry bo;
      bo.shared = 1;
      image.bos.push_back(bo);
    }
    GpuMatch match;
    match.join(tree_.get());
    if (!match.match(image, {}).ok()) return 0;
    return match.local_gpu(id).value()->gpu_id;
  }

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
  tree_->widest.nodes = others_;
  for (const kfd::Node& gpu : gpus_) tree_->widest.nodes.push_back(gpu);
  std::swap(tree_->widest.nodes[others_.size()].gpu_id, tree_->widest.nodes[others_.size() + 1].gpu_id);
  EXPECT_EQ(gpu_of_process(gpus_[0].gpu_id), gpus_[1].gpu_id);
  EXPECT_EQ(tree_->agreed().size(), 2U);
}

TEST_F(TreeMatchTest, TheUsersMapComesFirst) {
  tree_->map = {{gpus_[0].drm_render_minor, gpus_[1].gpu_id}};
  EXPECT_EQ(gpu_of_process(gpus_[0].gpu_id), gpus_[1].gpu_id);
}

TEST_F(TreeMatchTest, AGpuThatAnotherOfTheDumpHasIsNotTaken) {
  tree_->agree({gpus_[1].drm_render_minor, gpus_[0].gpu_id});
  EXPECT_EQ(gpu_of_process(gpus_[0].gpu_id), gpus_[1].gpu_id);
}

TEST_F(TreeMatchTest, ARenderFileGoesWhereTheOthersAre) {
  tree_->agree({gpus_[1].drm_render_minor, gpus_[0].gpu_id});
  GpuMatch match;
  match.join(tree_.get());
  const auto found = match.gpu_of(image_of(gpus_[1]));
  ASSERT_TRUE(found.ok()) << found.error().what;
  EXPECT_EQ((*found)->gpu_id, gpus_[0].gpu_id);
}

TEST_F(TreeMatchTest, VramThatIsMissingIsNamedWithWhatWouldDo) {
  GpuMatch match;
  match.join(tree_.get());
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
  // There seemed to be room: the kernel's words stay.
  const Error refused = match.explain(kernels, {{minor, 10U << 20}}, {{gpus_[0].gpu_id, 12U << 20}});
  EXPECT_TRUE(has_id(refused.what));
  EXPECT_NE(refused.what.find(kernels.what), std::string::npos) << refused.what;
  EXPECT_TRUE(has_id(match.explain(kernels, {{minor, 10U << 20}}, {}).what));
  // No VRAM was asked for, or it is something else.
  EXPECT_EQ(match.explain(kernels, {}, {}).topic, Topic::Unknown);
  EXPECT_EQ(match.explain(Error{EINVAL, "other"}, {{minor, 10U << 20}}, {}).what, "other");
}

}  // namespace
}  // namespace sluice::plugin
