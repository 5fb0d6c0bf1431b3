// SPDX-License-Identifier: MIT
// How much memory is free for BOs: a local GPU's VRAM, and the system memory (GTT) that GPUs use.
//
// Files of the render node's device (amdgpu_vram_mgr.c, amdgpu_gtt_mgr.c, Linux 4.13 to 7.2):
// mem_info_vram_total, mem_info_vram_used, and the same with gtt, bytes in decimal. They count all processes
// together, with and without KFD, and a whole card. On a partitioned card
// (current_compute_partition, amdgpu_gfx.c, exists and is not SPX) they say nothing about one partition. Only
// the first partition's render node has them. Untrusted text. Functions without state; any thread.
//
// Of a partition the KFD answers a process that has opened it (AVAILABLE_MEMORY). What was allocated without
// the KFD does not count there.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "kfd/device.h"
#include "kfd/topology.h"

namespace sluice::kfd {

inline constexpr char kDrmPath[] = "/sys/class/drm";

struct VramUse {
  std::uint64_t total_bytes = 0;
  std::uint64_t used_bytes = 0;

  std::uint64_t room() const { return total_bytes > used_bytes ? total_bytes - used_bytes : 0; }
};

// Of GPUs of this machine. Any thread.
class VramMeter {
 public:
  // `kfd_device`: kfd_device_number()'s, which is opened when a partition is asked about; 0: there is none.
  explicit VramMeter(dev_t kfd_device, std::string drm_path = kDrmPath)
      : kfd_device_(kfd_device), drm_path_(std::move(drm_path)) {}

  // Nothing if unknown: no such files, unreadable files, no number, a partition of which the KFD does not
  // tell.
  std::optional<VramUse> use(const Node& gpu);

 private:
  std::optional<VramUse> ask_kfd(const Node& gpu);

  dev_t kfd_device_;
  std::string drm_path_;
  Mutex mutex_;
  std::optional<KfdDevice> own_ SLUICE_GUARDED_BY(mutex_);
};

// The kernel's own figures of memory.
struct SystemFiles {
  std::string drm_path = kDrmPath;
  std::string meminfo = "/proc/meminfo";
  std::string ttm_pages = "/sys/module/ttm/parameters/pages_limit";
};

// How many bytes in GTT processes can still allocate, at least. Of the GPUs with these render nodes: what is
// free in the GTT of each, and below TTM's limit for all. Besides, what is free below the KFD's limit of
// system memory (amdgpu_amdkfd_gpuvm_init_mem_limits(): 15/16 of RAM, in newer kernels 63/64 less 1.5 GiB).
// What counts there is not shown; it is taken to be in use in `meminfo`, as memory registered by address is
// once it was written. Nothing if unknown.
std::optional<std::uint64_t> gtt_room(std::span<const std::uint32_t> render_minors,
                                      const SystemFiles& files = {});

// "0000:c1:00.0". A partition's function is its number in the card.
std::string pci_address(const Node& gpu);

// For messages: "0x978f renderD129".
std::string gpu_words(const Node& gpu);

// Bytes for messages: "1.5 GiB", "24.0 MiB"; less than a MiB in KiB, rounded up.
std::string size_words(std::uint64_t bytes);

}  // namespace sluice::kfd
