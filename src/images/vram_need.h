// SPDX-License-Identifier: MIT
// What the images of one dump need of its GPUs, as kfd/matching asks. VRAM is what RESTORE and the render
// files allocate; shared memory counts once, with the file that makes it. Value types.
#pragma once

#include <cstdint>
#include <map>

#include "images/kfd_image.h"
#include "images/metadata.h"
#include "kfd/matching/tree_choice.h"

namespace sluice {

// Bytes by the GPU's render minor in the images.
using VramBytes = std::map<std::uint32_t, std::uint64_t>;

VramBytes vram_of(const KfdImage& image);
// For one BO; 0 if it is not in VRAM, or is imported.
std::uint64_t vram_of(const RenderBo& bo);
VramBytes vram_of(const RenderImage& image);

// Sums saturate.
void add_vram(VramBytes& sum, const VramBytes& more);

// Borrows the image.
kfd::ProcessGpus process_of(const KfdImage& image);
kfd::RenderFile file_of(const RenderImage& image);

}  // namespace sluice
