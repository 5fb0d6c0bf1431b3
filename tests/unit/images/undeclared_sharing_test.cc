// SPDX-License-Identifier: MIT
// Memory that upstream's images show twice: told by its place on the GPU, not by handles.
#include "images/undeclared_sharing.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "kfd/uapi.h"

namespace sluice {
namespace {

constexpr std::uint32_t kGpu = 0x10, kOther = 0x20;

KfdImage kfd_image() {
  KfdImage image;
  image.topology.nodes = {{.node_id = 1, .gpu_id = kGpu, .drm_render_minor = 128},
                          {.node_id = 2, .gpu_id = kOther, .drm_render_minor = 129}};
  image.bos = {{{0x1000, 4096, 0x100000000, kGpu, kfd::kAllocVram}, 1},
               {{0x2000, 4096, 0x100001000, kGpu, kfd::kAllocGtt}, 2},
               {{0x3000, 4096, 0x100000000, kOther, kfd::kAllocVram}, 1},
               {{0x4000, 8192, 0xC000000000000000, kGpu, kfd::kAllocDoorbell}, kNoHandle},
               {{0x6000, 8192, 0xC000000000000000, kGpu, kfd::kAllocDoorbell}, kNoHandle}};
  return image;
}

RenderImage render_image(std::uint64_t mmap_offset) {
  RenderImage image;
  image.gpu_id = kGpu;
  image.minor = 128;
  image.bos.push_back({{1, 4096, 4096, 4, 0, {}, {}}, mmap_offset});
  return image;
}

void expect_same(const Result<void>& result, const std::string& words) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().err, ENOSYS);
  EXPECT_NE(result.error().what.find(words + " are the same memory"), std::string::npos)
      << result.error().what;
}

// Handle 1 stands in all of them, for three memories.
TEST(UndeclaredSharing, EqualHandlesAreOfDifferentMemory) {
  UndeclaredSharing images;
  EXPECT_TRUE(images.add("k", kfd_image()).ok());
  EXPECT_TRUE(images.add("r", render_image(0x100002000)).ok());
}

TEST(UndeclaredSharing, ABoThatARenderFileHasTooIsFoundWhateverTheHandles) {
  UndeclaredSharing images;
  ASSERT_TRUE(images.add("k", kfd_image()).ok());
  RenderImage render = render_image(0x100001000);
  render.bos[0].gem.handle = 70;
  expect_same(images.add("r", render), "k, BO 1 and r, GEM handle 70");
  UndeclaredSharing on_another_gpu;
  ASSERT_TRUE(on_another_gpu.add("k", kfd_image()).ok());
  render.minor = 129;
  EXPECT_TRUE(on_another_gpu.add("r", render).ok());
}

// The two know the GPU by ids of their own.
TEST(UndeclaredSharing, ABoThatTwoProcessesHaveIsFound) {
  UndeclaredSharing images;
  ASSERT_TRUE(images.add("first", kfd_image()).ok());
  KfdImage second = kfd_image();
  second.bos = {second.bos[1]};
  second.topology.nodes[0].gpu_id = second.bos[0].gpu_id = 0x77;
  expect_same(images.add("second", second), "first, BO 1 and second, BO 0");
}

TEST(UndeclaredSharing, ABoThatAProcessHasImportedFromItselfIsFound) {
  KfdImage image = kfd_image();
  image.bos.push_back(image.bos[0]);
  image.bos.back().addr = 0x9000;
  UndeclaredSharing images;
  expect_same(images.add("k", image), "k, BO 0 and k, BO 5");
}

TEST(UndeclaredSharing, TwoRenderFilesWithOneBoAreFoundAndBosThatNobodyMapsAreNot) {
  UndeclaredSharing images;
  ASSERT_TRUE(images.add("a", render_image(0)).ok());
  ASSERT_TRUE(images.add("b", render_image(0)).ok());
  ASSERT_TRUE(images.add("c", render_image(0x100000000)).ok());
  expect_same(images.add("d", render_image(0x100000000)), "c, GEM handle 1 and d, GEM handle 1");
}

TEST(UndeclaredSharing, AnImageMayBeLookedAtAgainAndOursSayItThemselves) {
  UndeclaredSharing images;
  EXPECT_TRUE(images.add("k", kfd_image()).ok());
  EXPECT_TRUE(images.add("k", kfd_image()).ok());
  KfdImage ours = kfd_image();
  ours.dump_id = DumpId{1};
  EXPECT_TRUE(images.add("ours", ours).ok());
  RenderImage render = render_image(0x100000000);
  render.dump_id = DumpId{1};
  EXPECT_TRUE(images.add("our render file", render).ok());
}

}  // namespace
}  // namespace sluice
