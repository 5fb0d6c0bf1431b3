// SPDX-License-Identifier: MIT
// How much of a local GPU's VRAM nobody has, as sysfs tells it: of all processes together, KFD's and others'.
//
// Files of the render node's device (amdgpu_vram_mgr.c, Linux 4.13 to 7.2): mem_info_vram_total,
// mem_info_vram_used, bytes in decimal. They are of a whole card: where that is partitioned
// (current_compute_partition, amdgpu_gfx.c, is there and is not SPX) they say nothing of one partition, and
// the render nodes of partitions but the first have none. Untrusted text. Functions without state; any
// thread.
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

// Nothing where it is not known: no such files, files that cannot be read or say no number, a partition.
std::optional<VramUse> vram_use(std::uint32_t render_minor, const std::string& drm_path = kDrmPath);

// "0000:c1:00.0". A partition's function is its number in the card.
std::string pci_address(const Node& gpu);

// As people read it: "0x978f renderD129".
std::string gpu_words(const Node& gpu);

// Bytes as a message has them: "1.5 GiB", "24.0 MiB"; less than a MiB in KiB, rounded up.
std::string size_words(std::uint64_t bytes);

}  // namespace sluice::kfd
