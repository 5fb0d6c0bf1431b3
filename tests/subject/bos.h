// SPDX-License-Identifier: MIT
// BOs and CPU maps of the subject, as records in the arena. Shared by its building and its checking half.
#pragma once

#include <linux/kfd_ioctl.h>

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "subject/arena.h"
#include "subject/device.h"
#include "subject/pattern.h"

namespace sluice::subject {

inline constexpr auto kWritable = static_cast<std::uint32_t>(KFD_IOC_ALLOC_MEM_FLAGS_WRITABLE);

bool has_contents(const BoRecord& bo);  // VRAM or GTT: what a dump carries
bool has_pattern(const BoRecord& bo);   // and that nobody but fill_bo() writes
Pattern pattern_of(const BoRecord& bo);

// Allocates a BO on arena.gpus[gpu], maps it into that GPU's VM and records it. Gives its index.
// `user_address`: CPU address of a USERPTR, whose GPU address is the same; else 0.
struct NewBo {
  std::uint32_t gpu = 0;
  std::uint64_t bytes = 0;
  std::uint32_t flags = 0;
  BoRole role = BoRole::Data;
  std::uint32_t zero_percent = 0;
  std::uint64_t user_address = 0;
};
Result<std::uint32_t> add_bo(Arena& arena, const NewBo& wanted, std::uint64_t* mmap_offset);

// Maps a BO into the VM of arena.gpus[gpu], too, and records that.
Result<void> map_for(const Arena& arena, BoRecord& bo, std::uint32_t gpu);

// Imports a dma-buf into the KFD, on arena.gpus[gpu], maps it into the VM of every GPU of the arena that can
// reach it and records it, with a hole below its handle. Gives its index.
Result<std::uint32_t> import_bo(Arena& arena, std::uint32_t gpu, int dmabuf, std::uint64_t bytes);
// Imports it there at an address, and maps it nowhere.
Result<std::uint64_t> import_at(const Arena& arena, std::uint32_t gpu, int dmabuf, std::uint64_t address);

// Makes the BO known to other processes, or asks by which handle it is.
Result<IpcHandle> ipc_handle_of(const Arena& arena, const BoRecord& bo);
// Imports what has the handle into the KFD, on arena.gpus[gpu], maps it into that GPU's VM and records it.
// Gives its index, and its mmap offset.
Result<std::uint32_t> import_ipc_bo(Arena& arena, std::uint32_t gpu, const IpcHandle& handle,
                                    std::uint64_t bytes, std::uint64_t* mmap_offset);

// CPU-maps the first `bytes` of a BO at `address` (must be free) and records the map.
struct NewMap {
  std::uint32_t bo = 0;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  // the device's mmap offset
  int fd = -1;
  int prot = 0;
};
Result<void> add_map(Arena& arena, const NewMap& wanted, const char* path);

// CPU-maps a whole VRAM or GTT BO at its GPU address, read-write, through the acquired file of its GPU, as
// the thunk does. `offset`: from add_bo().
Result<void> map_bo(Arena& arena, std::uint32_t index, std::uint64_t offset);

// "/dev/dri/renderD<minor>" of a GPU: that of its open file, or, where that was closed, as it was at the
// start.
Result<std::string> render_path_of(const Arena& arena, std::uint32_t gpu);

// A render file of the subject's own on the GPU, for looking into BOs. Not kept: no part of what is dumped.
Result<UniqueFd> open_window_file(const Arena& arena, std::uint32_t gpu);

// dma-buf of a BO by its record. After a restore onto a GPU with another gpu_id the kernel resolves the
// handle's upper half as the local id here and nowhere else (a known gap), so that form is tried second.
Result<UniqueFd> export_bo(const Arena& arena, const BoRecord& bo);

// Visits a BO's bytes through the window file; where KFD exports no dma-bufs, through the BO's own CPU map
// (check_bo then leaves the contents to the check of that map).
Result<void> fill_bo(const Arena& arena, int window_fd, const BoRecord& bo);
Result<void> check_bo(const Arena& arena, int window_fd, const BoRecord& bo);

// "BO 17 (GPU 5759, VA 0x..., 4096 bytes)"
std::string name_of(const Arena& arena, const BoRecord& bo);

}  // namespace sluice::subject
