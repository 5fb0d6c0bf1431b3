// SPDX-License-Identifier: MIT
// /dev/kfd and render nodes as the subject uses them: raw KFD ioctls, and libdrm for the little that goes
// through a render node. Numbers and layouts: the kernel's uapi headers (linux/kfd_ioctl.h,
// drm/amdgpu_drm.h).
//
// Free functions over file descriptors, called from the subject's only thread. All sizes in bytes. Errors
// carry the errno of the ioctl and its name.
#pragma once

#include <linux/kfd_ioctl.h>

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace sluice::subject {

// AMDKFD_IOC_EXPORT_DMABUF (KFD 1.12): younger than the headers of Debian 12.
struct KfdExportDmabufArgs {
  std::uint64_t handle;
  std::uint32_t flags;
  std::uint32_t dmabuf_fd;
};
inline constexpr unsigned long kKfdExportDmabuf = AMDKFD_IOWR(0x24, KfdExportDmabufArgs);

// AMDKFD_IOC_IPC_IMPORT_HANDLE and AMDKFD_IOC_IPC_EXPORT_HANDLE: only AMD's out-of-tree driver has them.
using IpcHandle = std::array<std::uint32_t, 4>;
struct KfdIpcImportArgs {
  std::uint64_t handle, va_addr, mmap_offset;
  IpcHandle share_handle;
  std::uint32_t gpu_id, flags;
};
struct KfdIpcExportArgs {
  std::uint64_t handle;
  IpcHandle share_handle;
  std::uint32_t gpu_id, flags;
};
inline constexpr unsigned long kKfdIpcImport = AMDKFD_IOWR(0x80, KfdIpcImportArgs);
inline constexpr unsigned long kKfdIpcExport = AMDKFD_IOWR(0x81, KfdIpcExportArgs);

// mmap offsets of /dev/kfd: type in bits 63:62, gpu_id in 61:46.
inline constexpr std::uint64_t kMmapTypeDoorbell = 3ULL << 62;
inline constexpr unsigned kMmapGpuShift = 46;
inline constexpr std::uint64_t kDoorbellBytes = 8192;  // process slice of SOC15 GPUs
inline constexpr std::uint64_t kGpuPageBytes = 4096;   // the GPU's ABI, whatever the CPU's page size is

// ioctl(2), restarted when interrupted.
Result<void> device_ioctl(int fd, unsigned long request, void* argument, const char* name);

Result<UniqueFd> open_device(const std::string& path);

// One GPU of the topology in sysfs, in node order.
struct TopologyGpu {
  std::uint32_t gpu_id = 0;
  std::uint32_t render_minor = 0;
  std::uint32_t gfx_target = 0;  // 90402 = gfx942
  std::uint32_t num_xcc = 1;
  // Least context save area of a compute queue per XCC, and its control stack: as the kernel tells, or
  // computed in its way where it does not.
  std::uint32_t cwsr_bytes = 0;
  std::uint32_t ctl_stack_bytes = 0;
  // What a debugger has behind each XCC's part of the area. No kernel tells.
  std::uint32_t debug_bytes = 0;
  // What CREATE_QUEUE wants mapped as one piece since Linux 6.12 (kfd_queue.c, kfd_queue_acquire_buffers).
  std::uint64_t save_area_bytes() const;
};
// ENOENT: no topology. GPUs whose gpu_id cannot be read (hidden by a device cgroup) are left out.
Result<std::vector<TopologyGpu>> read_topology();

// /dev/dri/renderD<minor> of an open render node, looked up by its device number.
Result<std::string> render_path(int render_fd);

// The ids that GET_PROCESS_APERTURES_NEW reports, one per GPU in topology order: always the local GPUs' own.
Result<std::vector<std::uint32_t>> aperture_gpu_ids(int kfd_fd);

// Whether retry faults (XNACK) of a process are on. EPERM: this kernel, or a GPU of it, has none.
Result<void> switch_xnack_on(int kfd_fd);
Result<bool> xnack_is_on(int kfd_fd);

Result<void> acquire_vm(int kfd_fd, int render_fd, std::uint32_t gpu_id);
// Allocates and gives the handle; `mmap_offset` in: the CPU address of a USERPTR, out: where to map a BO.
Result<std::uint64_t> alloc_memory(int kfd_fd, std::uint32_t gpu_id, std::uint64_t va, std::uint64_t bytes,
                                   std::uint32_t flags, std::uint64_t* mmap_offset);
Result<void> free_memory(int kfd_fd, std::uint64_t handle);
Result<void> map_memory(int kfd_fd, std::uint64_t handle, std::uint32_t gpu_id);
Result<void> unmap_memory(int kfd_fd, std::uint64_t handle, std::uint32_t gpu_id);
// dma-buf of a VRAM or GTT BO.
Result<UniqueFd> export_dmabuf(int kfd_fd, std::uint64_t handle);

// Shows a BO's bytes to `visit` in windows of at most 64 MiB: visit(window, offset of the window in the BO).
// Works for any VRAM or GTT BO, CPU-mapped by the subject or not: exported from KFD, imported into
// `window_fd` (a render file of our own, not the acquired one), mapped as a whole (DRM maps a BO from its
// first byte only), unmapped, closed. Pages of a window that is done are let go. The first error of `visit`
// stops it.
using VisitWindow = std::function<Result<void>(std::span<std::uint8_t> window, std::uint64_t offset)>;
Result<void> visit_bo(int window_fd, UniqueFd dmabuf, std::uint64_t bytes, const VisitWindow& visit);

}  // namespace sluice::subject
