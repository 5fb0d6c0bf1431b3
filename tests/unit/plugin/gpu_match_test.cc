// SPDX-License-Identifier: MIT
// Which local GPU a render file is opened on. Run by vamdgpu-run on a machine with two GPUs; skipped where
// there is no such machine.
#include "plugin/gpu_match.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace sluice::plugin
