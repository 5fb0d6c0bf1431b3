// SPDX-License-Identifier: MIT
// The bytes of a virtual DMA copy. Staging buffers lie 8 bytes beside what they are filled from (a pages file
// begins with an 8-byte length), and `rep movsb`, the kernel's way in pread, moves such a pair at half the
// speed of vector stores. Reentrant.
#pragma once

#include <cstddef>

namespace vamdgpu {

// memcpy for large ranges that do not overlap; the stores go past the caches, as an engine's do.
void dma_copy(void* to, const void* from, std::size_t bytes);

// Whether every page of [address, address + bytes) is mapped in this process, for at most kDmaCheckBytes.
inline constexpr std::size_t kDmaCheckBytes = std::size_t{64} << 20;
bool is_mapped(const void* address, std::size_t bytes);

}  // namespace vamdgpu
