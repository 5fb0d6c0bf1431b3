// SPDX-License-Identifier: MIT
// How much of a local GPU's VRAM is free, from sysfs: usage by all processes together, with and without KFD.
//
// Files of the render node's device (amdgpu_vram_mgr.c, Linux 4.13 to 7.2): mem_info_vram_total,
// mem_info_vram_used, bytes in decimal. They count a whole card. On a partitioned card
// (current_compute_partition, amdgpu_gfx.c, exists and is not SPX) they say nothing about one partition. Only
// the first partition's render node has them. Untrusted text. Functions without state; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kfd/topology.h"

namespace sluice::kfd {

inline constexpr char kDrmPath[] = "/sys/class/drm";

struct VramUse {
  std::uint64_t total_bytes = 0;
  std::uint64_t used_bytes = 0;

  std::uint64_t room() const { return total_bytes > used_bytes ? total_bytes - used_bytes : 0; }
};

// Nothing if unknown: no such files, unreadable files, no number, a partition.
std::optional<VramUse> vram_use(std::uint32_t render_minor, const std::string& drm_path = kDrmPath);

// "0000:c1:00.0". A partition's function is its number in the card.
std::string pci_address(const Node& gpu);

// For messages: "0x978f renderD129".
std::string gpu_words(const Node& gpu);

// Bytes for messages: "1.5 GiB", "24.0 MiB"; less than a MiB in KiB, rounded up.
std::string size_words(std::uint64_t bytes);

}  // namespace sluice::kfd
