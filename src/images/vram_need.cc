// SPDX-License-Identifier: MIT
#include "images/vram_need.h"

#include <libdrm/amdgpu_drm.h>

#include <algorithm>
#include <limits>

#include "kfd/uapi.h"

namespace sluice {

namespace {

// GPUs allocate memory in pages.
constexpr std::uint64_t kPage = 4096;

void add(std::uint64_t& sum, std::uint64_t bytes) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t whole = bytes > kMost - (kPage - 1) ? kMost : (bytes + kPage - 1) / kPage * kPage;
  sum = whole > kMost - sum ? kMost : sum + whole;
}

}  // namespace

VramBytes vram_of(const KfdImage& image) {
  VramBytes bytes;
  for (const BoEntry& bo : image.bos) {
    if (bo.imports || (bo.alloc_flags & kfd::kAllocVram) == 0) continue;
    const kfd::Node* gpu = image.topology.find_gpu(bo.gpu_id);
    if (gpu != nullptr) add(bytes[gpu->drm_render_minor], bo.bytes);
  }
  return bytes;
}

std::uint64_t vram_of(const RenderBo& bo) {
  std::uint64_t bytes = 0;
  if (!bo.imports && (bo.gem.domains & AMDGPU_GEM_DOMAIN_VRAM) != 0) add(bytes, bo.gem.bytes);
  return bytes;
}

VramBytes vram_of(const RenderImage& image) {
  VramBytes bytes;
  for (const RenderBo& bo : image.bos) {
    if (const std::uint64_t of_bo = vram_of(bo); of_bo != 0) add(bytes[image.minor], of_bo);
  }
  return bytes;
}

void add_vram(VramBytes& sum, const VramBytes& more) {
  for (const auto& [minor, bytes] : more) add(sum[minor], bytes);
}

kfd::ProcessGpus process_of(const KfdImage& image) {
  return {image.topology,
          std::any_of(image.bos.begin(), image.bos.end(), [](const BoEntry& bo) { return bo.shared != 0; })};
}

kfd::RenderFile file_of(const RenderImage& image) {
  return {image.gpu_id, image.minor, image.node_words()};
}

}  // namespace sluice
