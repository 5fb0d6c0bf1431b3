// SPDX-License-Identifier: MIT
#include "subject/bos.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/units.h"
#include "subject/device.h"

namespace sluice::subject {
namespace {

constexpr std::uint64_t kPlaceholderBytes = 64 * kKiB;  // a page, wherever

BoRecord new_import(GpuRecord& on, std::uint32_t gpu, std::uint64_t bytes) {
  BoRecord bo{};
  bo.gpu = gpu;
  bo.bytes = bytes;
  bo.flags = KFD_IOC_ALLOC_MEM_FLAGS_VRAM | kWritable;
  bo.role = BoRole::Shared;
  bo.va = on.next_va;
  on.next_va += align_up(bytes, 64 * kKiB) + 64 * kKiB;
  return bo;
}

}  // namespace

bool has_contents(const BoRecord& bo) {
  return (bo.flags & (KFD_IOC_ALLOC_MEM_FLAGS_VRAM | KFD_IOC_ALLOC_MEM_FLAGS_GTT)) != 0;
}

bool has_pattern(const BoRecord& bo) {
  return has_contents(bo) && bo.role != BoRole::EventPage && bo.role != BoRole::Running &&
         bo.role != BoRole::Shared && bo.role != BoRole::SaveArea;
}

Pattern pattern_of(const BoRecord& bo) {
  return Pattern{bo.seed, bo.bytes, bo.zero_percent};
}

std::string name_of(const Arena& arena, const BoRecord& bo) {
  std::array<char, 128> text{};
  std::snprintf(text.data(), text.size(), "BO %td (GPU %" PRIu32 ", VA 0x%" PRIx64 ", %" PRIu64 " bytes)",
                &bo - arena.bos.data(), arena.gpus[bo.gpu].gpu_id, bo.va, bo.bytes);
  return text.data();
}

Result<std::uint32_t> add_bo(Arena& arena, const NewBo& wanted, std::uint64_t* mmap_offset) {
  if (arena.num_bos == kMaxBos) return Error{ENOSPC, "the subject's BO table is full"};
  GpuRecord& gpu = arena.gpus[wanted.gpu];
  BoRecord bo{};
  bo.gpu = wanted.gpu;
  bo.bytes = wanted.bytes;
  bo.flags = wanted.flags;
  bo.role = wanted.role;
  bo.zero_percent = wanted.zero_percent;
  const auto like_it =
      std::count_if(arena.bos.begin(), arena.bos.begin() + arena.num_bos, [&](const BoRecord& other) {
        return other.gpu == wanted.gpu && other.bytes == wanted.bytes && other.role == wanted.role;
      });
  bo.seed = mix(arena.seed + 1 +
                (arena.replicas ? mix(bo.bytes) + static_cast<std::uint64_t>(like_it) : arena.num_bos));
  *mmap_offset = wanted.user_address;
  if (wanted.user_address != 0) {
    bo.va = wanted.user_address;
  } else {
    bo.va = gpu.next_va;
    // One page stays free between BOs: an access past an end must not land in a neighbour.
    gpu.next_va += align_up(bo.bytes, 64 * kKiB) + 64 * kKiB;
  }
  SLUICE_TRY_ASSIGN(bo.handle,
                    alloc_memory(arena.kfd_fd, gpu.gpu_id, bo.va, bo.bytes, bo.flags, mmap_offset));
  SLUICE_TRY(map_for(arena, bo, wanted.gpu));
  arena.bos[arena.num_bos] = bo;
  return arena.num_bos++;
}

Result<void> map_for(const Arena& arena, BoRecord& bo, std::uint32_t gpu) {
  SLUICE_TRY(map_memory(arena.kfd_fd, bo.handle, arena.gpus[gpu].gpu_id));
  bo.mapped |= 1U << gpu;
  return {};
}

Result<std::uint64_t> import_at(const Arena& arena, std::uint32_t gpu, int dmabuf, std::uint64_t address) {
  kfd_ioctl_import_dmabuf_args args{};
  args.va_addr = address;
  args.gpu_id = arena.gpus[gpu].gpu_id;
  args.dmabuf_fd = static_cast<std::uint32_t>(dmabuf);
  SLUICE_TRY(device_ioctl(arena.kfd_fd, AMDKFD_IOC_IMPORT_DMABUF, &args, "IMPORT_DMABUF"));
  return std::uint64_t{args.handle};
}

Result<std::uint32_t> import_bo(Arena& arena, std::uint32_t gpu, int dmabuf, std::uint64_t bytes) {
  if (arena.num_bos == kMaxBos) return Error{ENOSPC, "the subject's BO table is full"};
  GpuRecord& on = arena.gpus[gpu];
  BoRecord bo = new_import(on, gpu, bytes);
  std::array<std::uint64_t, 2> below{};
  for (std::uint64_t& handle : below) {
    std::uint64_t offset = 0;
    SLUICE_TRY_ASSIGN(handle, alloc_memory(arena.kfd_fd, on.gpu_id, on.next_va, kPlaceholderBytes,
                                           KFD_IOC_ALLOC_MEM_FLAGS_GTT | kWritable, &offset));
  }
  SLUICE_TRY_ASSIGN(bo.handle, import_at(arena, gpu, dmabuf, bo.va));
  for (const std::uint64_t handle : below) SLUICE_TRY(free_memory(arena.kfd_fd, handle));
  SLUICE_TRY(map_for(arena, bo, gpu));
  for (std::uint32_t i = 0; i < arena.num_gpus; ++i) {
    if (i == gpu) continue;
    // A kernel without peer-to-peer DMA lets no GPU at another's VRAM.
    if (Result<void> mapped = map_for(arena, bo, i); !mapped && mapped.error().err != EINVAL)
      return mapped.error();
  }
  arena.bos[arena.num_bos] = bo;
  return arena.num_bos++;
}

Result<IpcHandle> ipc_handle_of(const Arena& arena, const BoRecord& bo) {
  KfdIpcExportArgs args{};
  args.handle = bo.handle;
  args.gpu_id = arena.gpus[bo.gpu].gpu_id;
  SLUICE_TRY(device_ioctl(arena.kfd_fd, kKfdIpcExport, &args, "IPC_EXPORT_HANDLE"));
  return args.share_handle;
}

Result<std::uint32_t> import_ipc_bo(Arena& arena, std::uint32_t gpu, const IpcHandle& handle,
                                    std::uint64_t bytes, std::uint64_t* mmap_offset) {
  if (arena.num_bos == kMaxBos) return Error{ENOSPC, "the subject's BO table is full"};
  BoRecord bo = new_import(arena.gpus[gpu], gpu, bytes);
  KfdIpcImportArgs args{};
  args.va_addr = bo.va;
  args.share_handle = handle;
  args.gpu_id = arena.gpus[gpu].gpu_id;
  SLUICE_TRY(device_ioctl(arena.kfd_fd, kKfdIpcImport, &args, "IPC_IMPORT_HANDLE"));
  bo.handle = args.handle;
  *mmap_offset = args.mmap_offset;
  SLUICE_TRY(map_for(arena, bo, gpu));
  arena.bos[arena.num_bos] = bo;
  return arena.num_bos++;
}

Result<void> add_map(Arena& arena, const NewMap& wanted, const char* path) {
  if (arena.num_maps == kMaxMaps) return Error{ENOSPC, "the subject's map table is full"};
  MapRecord map{};
  map.address = wanted.address;
  map.bytes = wanted.bytes;
  map.offset = wanted.offset;
  map.bo = wanted.bo;
  map.fd = wanted.fd;
  map.prot = wanted.prot;
  std::snprintf(map.path.data(), map.path.size(), "%s", path);
  void* at = ::mmap(reinterpret_cast<void*>(wanted.address), wanted.bytes, wanted.prot,
                    MAP_SHARED | MAP_FIXED_NOREPLACE, wanted.fd, static_cast<off_t>(wanted.offset));
  if (at == MAP_FAILED) return make_error(errno, std::string("mmap of ") + path);
  if (reinterpret_cast<std::uintptr_t>(at) != wanted.address) return Error{EEXIST, "mmap went elsewhere"};
  arena.maps[arena.num_maps++] = map;
  return {};
}

Result<void> map_bo(Arena& arena, std::uint32_t index, std::uint64_t offset) {
  const BoRecord& bo = arena.bos[index];
  NewMap map{.bo = index, .address = bo.va, .bytes = bo.bytes, .offset = offset};
  map.fd = arena.gpus[bo.gpu].render_fd;
  map.prot = PROT_READ | PROT_WRITE;
  SLUICE_TRY_ASSIGN(const std::string path, render_path_of(arena, bo.gpu));
  return add_map(arena, map, path.c_str());
}

Result<std::string> render_path_of(const Arena& arena, std::uint32_t gpu) {
  const GpuRecord& record = arena.gpus[gpu];
  if (record.render_fd >= 0) return render_path(record.render_fd);
  return "/dev/dri/renderD" + std::to_string(record.render_minor);
}

Result<UniqueFd> open_window_file(const Arena& arena, std::uint32_t gpu) {
  SLUICE_TRY_ASSIGN(const std::string path, render_path_of(arena, gpu));
  return open_device(path);
}

Result<UniqueFd> export_bo(const Arena& arena, const BoRecord& bo) {
  Result<UniqueFd> direct = export_dmabuf(arena.kfd_fd, bo.handle);
  if (direct || direct.error().err != EINVAL) return direct;
  SLUICE_TRY_ASSIGN(const std::string path, render_path_of(arena, bo.gpu));
  SLUICE_TRY_ASSIGN(const std::vector<TopologyGpu> local, read_topology());
  for (const TopologyGpu& gpu : local) {
    if (path != "/dev/dri/renderD" + std::to_string(gpu.render_minor)) continue;
    return export_dmabuf(arena.kfd_fd, std::uint64_t{gpu.gpu_id} << 32 | (bo.handle & 0xffffffff));
  }
  return direct;
}

Result<void> fill_bo(const Arena& arena, int window_fd, const BoRecord& bo) {
  if (arena.can_export == 0) {
    pattern_of(bo).fill({reinterpret_cast<std::uint8_t*>(bo.va), bo.bytes}, 0);
    return {};
  }
  SLUICE_TRY_ASSIGN(UniqueFd dmabuf, export_bo(arena, bo));
  return visit_bo(window_fd, std::move(dmabuf), bo.bytes,
                  [&](std::span<std::uint8_t> window, std::uint64_t offset) -> Result<void> {
                    pattern_of(bo).fill(window, offset);
                    return {};
                  });
}

Result<void> check_bo(const Arena& arena, int window_fd, const BoRecord& bo) {
  if (arena.can_export == 0) return {};
  SLUICE_TRY_ASSIGN(UniqueFd dmabuf, export_bo(arena, bo));
  const off_t size = ::lseek(dmabuf.get(), 0, SEEK_END);
  if (size < 0 || static_cast<std::uint64_t>(size) != bo.bytes) {
    return Error{EINVAL, name_of(arena, bo) + " has " + std::to_string(size) + " bytes"};
  }
  return visit_bo(window_fd, std::move(dmabuf), bo.bytes,
                  [&](std::span<std::uint8_t> window, std::uint64_t offset) -> Result<void> {
                    const auto difference = pattern_of(bo).first_difference(window, offset);
                    if (!difference) return {};
                    return Error{EIO, name_of(arena, bo) + " differs at byte " + std::to_string(*difference)};
                  });
}

}  // namespace sluice::subject
