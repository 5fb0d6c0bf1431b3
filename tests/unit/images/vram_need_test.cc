// SPDX-License-Identifier: MIT
// What a dump's images need of each GPU's VRAM.
#include "images/vram_need.h"

#include <gtest/gtest.h>
#include <libdrm/amdgpu_drm.h>

#include <limits>

#include "kfd/uapi.h"

namespace sluice {
namespace {

constexpr std::uint32_t kFirst = 0x2000, kSecond = 0x2001;
constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

BoEntry bo(std::uint32_t gpu_id, std::uint64_t bytes, std::uint32_t flags = kfd::kAllocVram) {
  BoEntry entry;
  entry.gpu_id = gpu_id;
  entry.bytes = bytes;
  entry.alloc_flags = flags;
  return entry;
}

KfdImage image_with(std::vector<BoEntry> bos) {
  KfdImage image;
  for (const std::uint32_t gpu_id : {kFirst, kSecond}) {
    kfd::Node node;
    node.node_id = gpu_id;
    node.gpu_id = gpu_id;
    node.drm_render_minor = 128 + gpu_id - kFirst;
    image.topology.nodes.push_back(node);
  }
  image.bos = std::move(bos);
  return image;
}

TEST(VramNeed, IsWhatAProcessHasInVramInWholePages) {
  BoEntry imported = bo(kFirst, 1 << 20);
  imported.imports = true;
  const VramBytes bytes = vram_of(image_with(
      {bo(kFirst, 1), bo(kFirst, 8192), bo(kSecond, 4096), bo(kSecond, 1 << 20, kfd::kAllocGtt), imported}));
  EXPECT_EQ(bytes, (VramBytes{{128, 4096 + 8192}, {129, 4096}}));
}

TEST(VramNeed, OfARenderFileIsWhatItMakesThere) {
  RenderImage image;
  image.minor = 130;
  for (const std::uint64_t domains :
       {AMDGPU_GEM_DOMAIN_VRAM, AMDGPU_GEM_DOMAIN_GTT, AMDGPU_GEM_DOMAIN_VRAM | AMDGPU_GEM_DOMAIN_GTT}) {
    RenderBo bo;
    bo.gem.bytes = 4096;
    bo.gem.domains = domains;
    image.bos.push_back(bo);
  }
  image.bos.push_back(image.bos.front());
  image.bos.back().imports = true;
  EXPECT_EQ(vram_of(image), (VramBytes{{130, 8192}}));
}

TEST(VramNeed, AddsUpAndStopsAtTheLargestNumber) {
  VramBytes sum = {{128, 4096}};
  add_vram(sum, {{128, 4096}, {129, 4096}});
  EXPECT_EQ(sum, (VramBytes{{128, 8192}, {129, 4096}}));
  add_vram(sum, {{128, kMost}});
  add_vram(sum, {{128, kMost}});
  EXPECT_EQ(sum[128], kMost);
  EXPECT_EQ(vram_of(image_with({bo(kFirst, kMost), bo(kFirst, kMost)}))[128], kMost);
}

}  // namespace
}  // namespace sluice
