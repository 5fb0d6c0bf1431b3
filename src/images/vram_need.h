// SPDX-License-Identifier: MIT
// How much VRAM the images of one dump bring onto each of its GPUs: what RESTORE and the render files
// allocate. Memory that several files have counts once, with the file that makes it. Value type.
#pragma once

#include <cstdint>
#include <map>

#include "images/kfd_image.h"
#include "images/metadata.h"

namespace sluice {

// Bytes by the GPU's render minor in the images.
using VramBytes = std::map<std::uint32_t, std::uint64_t>;

VramBytes vram_of(const kfd::KfdImage& image);
// Of one BO; 0 where it lies in no VRAM, or is imported.
std::uint64_t vram_of(const RenderBo& bo);
VramBytes vram_of(const RenderImage& image);

// Sums stop at the largest number.
void add_vram(VramBytes& sum, const VramBytes& more);

}  // namespace sluice
