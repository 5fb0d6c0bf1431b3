// SPDX-License-Identifier: MIT
#include "subject/device.h"

#include <dirent.h>
#include <fcntl.h>
#include <libdrm/amdgpu_drm.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <xf86drm.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/units.h"

namespace sluice::subject {
namespace {

constexpr std::uint64_t kWindowBytes = 64 * kMiB;
constexpr const char* kTopologyNodes = "/sys/class/kfd/kfd/topology/nodes";

// The text of a small file, empty where it cannot be read. C stdio, as ROCm's libraries read sysfs.
std::string read_text(const std::string& path) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  std::string text;
  if (!file) return text;
  std::array<char, 4096> buffer{};
  std::size_t got = 0;
  while ((got = std::fread(buffer.data(), 1, buffer.size(), file.get())) > 0) text.append(buffer.data(), got);
  return text;
}

// What the size of a context save area depends on.
struct Waves {
  std::uint32_t simds = 0, simds_per_unit = 1, arrays = 0, arrays_per_engine = 1;
};

// gfx9, per XCC: 40 waves a compute unit, at most 512 an array; 8 bytes of control stack a wave behind a
// header of 40; VGPRs, SGPRs, LDS and hardware registers of a compute unit take 0x95000 bytes; a debugger has
// 32 bytes a wave. The kernel compares (kfd_queue.c, kfd_queue_ctx_save_restore_size).
void compute_save_area(const Waves& waves, TopologyGpu* gpu) {
  constexpr std::uint32_t kUnitBytes = 0x80000 + 0x4000 + 0x10000 + 0x1000;
  constexpr std::uint32_t kDebugBytesOfWave = 32, kDebugAlignment = 64;
  const std::uint32_t units = waves.simds / waves.simds_per_unit / gpu->num_xcc;
  const std::uint32_t most = std::min(units * 40, waves.arrays / waves.arrays_per_engine * 512);
  gpu->debug_bytes = static_cast<std::uint32_t>(
      align_up(std::uint64_t{most} * kDebugBytesOfWave, std::uint64_t{kDebugAlignment}));
  if (gpu->cwsr_bytes != 0) return;
  const std::uint64_t control = align_up(std::uint64_t{40} + most * 8 + 8, kGpuPageBytes);
  gpu->ctl_stack_bytes = static_cast<std::uint32_t>(control);
  gpu->cwsr_bytes =
      static_cast<std::uint32_t>(control + align_up(std::uint64_t{units} * kUnitBytes, kGpuPageBytes));
}

// Closes a GEM handle when it goes out of scope.
struct GemHandle {
  int fd;
  std::uint32_t handle;
  GemHandle(int render_fd, std::uint32_t gem_handle) : fd(render_fd), handle(gem_handle) {}
  GemHandle(const GemHandle&) = delete;
  GemHandle& operator=(const GemHandle&) = delete;
  ~GemHandle() { (void)drmCloseBufferHandle(fd, handle); }
};

}  // namespace

std::uint64_t TopologyGpu::save_area_bytes() const {
  return align_up((std::uint64_t{cwsr_bytes} + debug_bytes) * num_xcc, kGpuPageBytes);
}

Result<void> device_ioctl(int fd, unsigned long request, void* argument, const char* name) {
  int result = 0;
  do {
    result = ::ioctl(fd, request, argument);
  } while (result < 0 && errno == EINTR);
  if (result < 0) return make_error(errno, name);
  return {};
}

Result<UniqueFd> open_device(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) return make_error(errno, "open " + path);
  return fd;
}

Result<std::vector<TopologyGpu>> read_topology() {
  std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(kTopologyNodes), &::closedir);
  if (!directory) return make_error(errno, kTopologyNodes);
  std::vector<unsigned long> numbers;
  while (const dirent* entry = ::readdir(directory.get())) {
    if (entry->d_name[0] >= '0' && entry->d_name[0] <= '9')
      numbers.push_back(std::strtoul(entry->d_name, nullptr, 10));
  }
  std::sort(numbers.begin(), numbers.end());

  std::vector<TopologyGpu> gpus;
  for (const unsigned long number : numbers) {
    const std::string node = std::string(kTopologyNodes) + "/" + std::to_string(number);
    TopologyGpu gpu;
    gpu.gpu_id = static_cast<std::uint32_t>(std::strtoul(read_text(node + "/gpu_id").c_str(), nullptr, 10));
    if (gpu.gpu_id == 0) continue;  // a CPU
    std::istringstream lines(read_text(node + "/properties"));
    std::string key;
    std::uint64_t value = 0;
    Waves waves;
    while (lines >> key >> value) {
      const auto small = static_cast<std::uint32_t>(value);
      if (key == "drm_render_minor") gpu.render_minor = small;
      if (key == "gfx_target_version") gpu.gfx_target = small;
      if (key == "num_xcc" && value > 0) gpu.num_xcc = small;
      if (key == "cwsr_size") gpu.cwsr_bytes = small;
      if (key == "ctl_stack_size") gpu.ctl_stack_bytes = small;
      if (key == "simd_count") waves.simds = small;
      if (key == "simd_per_cu" && value > 0) waves.simds_per_unit = small;
      if (key == "array_count") waves.arrays = small;
      if (key == "simd_arrays_per_engine" && value > 0) waves.arrays_per_engine = small;
    }
    compute_save_area(waves, &gpu);
    gpus.push_back(gpu);
  }
  return gpus;
}

Result<std::string> render_path(int render_fd) {
  struct stat status {};
  if (::fstat(render_fd, &status) != 0) return make_error(errno, "fstat of the render node");
  if (!S_ISCHR(status.st_mode)) return make_error(ENODEV, "the render node's descriptor");
  return "/dev/dri/renderD" + std::to_string(minor(status.st_rdev));
}

Result<std::vector<std::uint32_t>> aperture_gpu_ids(int kfd_fd) {
  kfd_ioctl_get_process_apertures_new_args args{};
  SLUICE_TRY(device_ioctl(kfd_fd, AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, &args, "GET_PROCESS_APERTURES_NEW"));
  std::vector<kfd_process_device_apertures> apertures(args.num_of_nodes);
  args.kfd_process_device_apertures_ptr = reinterpret_cast<std::uintptr_t>(apertures.data());
  SLUICE_TRY(device_ioctl(kfd_fd, AMDKFD_IOC_GET_PROCESS_APERTURES_NEW, &args, "GET_PROCESS_APERTURES_NEW"));
  std::vector<std::uint32_t> ids;
  for (std::uint32_t i = 0; i < args.num_of_nodes; ++i) ids.push_back(apertures[i].gpu_id);
  return ids;
}

Result<void> switch_xnack_on(int kfd_fd) {
  kfd_ioctl_set_xnack_mode_args args{.xnack_enabled = 1};
  return device_ioctl(kfd_fd, AMDKFD_IOC_SET_XNACK_MODE, &args, "SET_XNACK_MODE");
}

Result<bool> xnack_is_on(int kfd_fd) {
  kfd_ioctl_set_xnack_mode_args args{.xnack_enabled = -1};  // asks
  SLUICE_TRY(device_ioctl(kfd_fd, AMDKFD_IOC_SET_XNACK_MODE, &args, "SET_XNACK_MODE"));
  return args.xnack_enabled != 0;
}

Result<void> acquire_vm(int kfd_fd, int render_fd, std::uint32_t gpu_id) {
  kfd_ioctl_acquire_vm_args args{};
  args.drm_fd = static_cast<std::uint32_t>(render_fd);
  args.gpu_id = gpu_id;
  return device_ioctl(kfd_fd, AMDKFD_IOC_ACQUIRE_VM, &args, "ACQUIRE_VM");
}

Result<std::uint64_t> alloc_memory(int kfd_fd, std::uint32_t gpu_id, std::uint64_t va, std::uint64_t bytes,
                                   std::uint32_t flags, std::uint64_t* mmap_offset) {
  kfd_ioctl_alloc_memory_of_gpu_args args{};
  args.va_addr = va;
  args.size = bytes;
  args.mmap_offset = *mmap_offset;
  args.gpu_id = gpu_id;
  args.flags = flags;
  SLUICE_TRY(device_ioctl(kfd_fd, AMDKFD_IOC_ALLOC_MEMORY_OF_GPU, &args, "ALLOC_MEMORY_OF_GPU"));
  *mmap_offset = args.mmap_offset;
  return static_cast<std::uint64_t>(args.handle);
}

Result<void> free_memory(int kfd_fd, std::uint64_t handle) {
  kfd_ioctl_free_memory_of_gpu_args args{};
  args.handle = handle;
  return device_ioctl(kfd_fd, AMDKFD_IOC_FREE_MEMORY_OF_GPU, &args, "FREE_MEMORY_OF_GPU");
}

// Both ioctls take a BO and a list of GPUs.
template <class Args>
Result<void> call_for_gpu(int kfd_fd, unsigned long request, std::uint64_t handle, std::uint32_t gpu_id,
                          const char* name) {
  Args args{};
  args.handle = handle;
  args.device_ids_array_ptr = reinterpret_cast<std::uintptr_t>(&gpu_id);
  args.n_devices = 1;
  return device_ioctl(kfd_fd, request, &args, name);
}

Result<void> map_memory(int kfd_fd, std::uint64_t handle, std::uint32_t gpu_id) {
  return call_for_gpu<kfd_ioctl_map_memory_to_gpu_args>(kfd_fd, AMDKFD_IOC_MAP_MEMORY_TO_GPU, handle, gpu_id,
                                                        "MAP_MEMORY_TO_GPU");
}

Result<void> unmap_memory(int kfd_fd, std::uint64_t handle, std::uint32_t gpu_id) {
  return call_for_gpu<kfd_ioctl_unmap_memory_from_gpu_args>(kfd_fd, AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU, handle,
                                                            gpu_id, "UNMAP_MEMORY_FROM_GPU");
}

Result<UniqueFd> export_dmabuf(int kfd_fd, std::uint64_t handle) {
  KfdExportDmabufArgs args{handle, O_CLOEXEC | O_RDWR, 0};
  SLUICE_TRY(device_ioctl(kfd_fd, kKfdExportDmabuf, &args, "EXPORT_DMABUF"));
  return UniqueFd(static_cast<int>(args.dmabuf_fd));
}

Result<void> visit_bo(int window_fd, UniqueFd dmabuf, std::uint64_t bytes, const VisitWindow& visit) {
  std::uint32_t number = 0;
  if (drmPrimeFDToHandle(window_fd, dmabuf.get(), &number) != 0)
    return make_error(errno, "PRIME_FD_TO_HANDLE");
  const GemHandle handle(window_fd, number);
  dmabuf.reset();
  drm_amdgpu_gem_mmap where{};
  where.in.handle = number;
  SLUICE_TRY(device_ioctl(window_fd, DRM_IOCTL_AMDGPU_GEM_MMAP, &where, "AMDGPU_GEM_MMAP"));

  void* map = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, window_fd,
                     static_cast<off_t>(where.out.addr_ptr));
  if (map == MAP_FAILED) return make_error(errno, "mmap of a BO");
  Result<void> seen;
  for (std::uint64_t offset = 0; seen && offset < bytes; offset += kWindowBytes) {
    const std::span window(static_cast<std::uint8_t*>(map) + offset, std::min(kWindowBytes, bytes - offset));
    // Both only save time and memory; a kernel's device maps refuse them.
    (void)::madvise(window.data(), window.size(), MADV_POPULATE_WRITE);
    seen = visit(window, offset);
    (void)::madvise(window.data(), window.size(), MADV_DONTNEED);
  }
  (void)::munmap(map, bytes);
  return seen;
}

}  // namespace sluice::subject
