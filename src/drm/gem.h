// SPDX-License-Identifier: MIT
// A GEM BO of a render file as a value: as the kernel reports it, an image stores it, and a restore recreates
// it.
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

// Data that the kernel keeps with a BO for those that share it (GEM_METADATA). It does not interpret them:
// the tiling, and bytes for the drivers in user space.
inline constexpr std::size_t kMostMetadataBytes = 256;
struct GemMetadata {
  std::uint64_t tiling_info = 0;  // AMDGPU_TILING_*
  std::uint64_t flags = 0;
  std::vector<std::uint8_t> data;  // kMostMetadataBytes at most

  bool operator==(const GemMetadata&) const = default;
};

// A BO's properties.
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
