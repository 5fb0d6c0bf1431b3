// SPDX-License-Identifier: MIT
// A GEM BO of a render file as a value: what the kernel tells of it, what an image keeps, and what a restore
// makes again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::drm {

// Where a BO is mapped in the file's GPU address space, bytes.
struct GemMapping {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t bo_offset = 0;
  std::uint64_t flags = 0;  // AMDGPU_VM_PAGE_* and PTE bits, as the kernel reports them

  bool operator==(const GemMapping&) const = default;
};

// What the kernel keeps with a BO for those that share it, and does not read (GEM_METADATA): how it is tiled,
// and octets that mean something to the drivers in user space.
inline constexpr std::size_t kMostMetadataBytes = 256;
struct GemMetadata {
  std::uint64_t tiling_info = 0;  // AMDGPU_TILING_*
  std::uint64_t flags = 0;
  std::vector<std::uint8_t> data;  // kMostMetadataBytes at most

  bool operator==(const GemMetadata&) const = default;
};

// What a BO is made of.
struct GemBo {
  std::uint32_t handle = 0;
  std::uint64_t bytes = 0;
  std::uint64_t alignment_bytes = 0;
  std::uint64_t domains = 0;      // AMDGPU_GEM_DOMAIN_*
  std::uint64_t alloc_flags = 0;  // AMDGPU_GEM_CREATE_*
  std::vector<GemMapping> mappings;
  GemMetadata metadata;

  bool operator==(const GemBo&) const = default;
};

}  // namespace sluice::drm
