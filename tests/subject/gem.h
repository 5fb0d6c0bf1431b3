// SPDX-License-Identifier: MIT
// BOs that the subject allocates through its render files (DRM, not KFD): under chosen handles, in both
// domains, mapped in the GPU's address space in different ways, some mapped for the CPU. Functions over the
// arena, called from the main thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "base/unique_fd.h"
#include "subject/arena.h"
#include "subject/options.h"

namespace sluice::subject {

// A BO of 1 MiB in VRAM that the CPU may map. Gives its handle.
inline constexpr std::uint64_t kPlainGemBytes = kMiB;
Result<std::uint32_t> create_plain_gem(int render_fd);
// Maps it for the CPU.
Result<std::span<std::uint8_t>> map_plain_gem(int render_fd, std::uint32_t handle);

// Where the device file maps a BO.
Result<std::uint64_t> mmap_offset(int render_fd, std::uint32_t handle);

// Maps a part of a BO in the GPU's address space of the file.
Result<void> map_for_gpu(int render_fd, std::uint32_t handle, const GpuMap& map);
// It is mapped so, as far as the kernel tells; perhaps elsewhere, too: the file that KFD has acquired shows
// KFD's own maps of a BO.
Result<void> check_gpu_map(int render_fd, std::uint32_t handle, const GpuMap& map);

// Sets a BO's metadata, through any file that has a handle of it.
Result<void> set_metadata(int render_fd, std::uint32_t handle, const MetadataRecord& metadata);
// It has these, and no others.
Result<void> check_metadata(int render_fd, std::uint32_t handle, const MetadataRecord& metadata);

// A BO for each of options.gem_handles in every render file.
Result<void> add_gem_bos(Arena& arena, const Options& options);
// Contents, sizes, domains, flags and metadata by their handles, and where the GPU maps them, as far as the
// kernel tells.
Result<void> check_gem_bos(const Arena& arena);
// Allocates, maps, checks and frees another one in each render file that has any: it gets the lowest handle
// that is free.
Result<void> work_gem_bos(const Arena& arena);
// Submits a job that does nothing, and uses the first of these BOs for as long as it takes. Leaves a BO with
// its packets, and a context.
Result<void> submit_gem_job(Arena& arena);

}  // namespace sluice::subject
