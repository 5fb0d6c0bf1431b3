// SPDX-License-Identifier: MIT
// See device.h. The only file that includes libdrm's amdgpu.h; libdrm 2.4.114 suffices.
#include "drm/device.h"

#include <amdgpu.h>
#include <amdgpu_drm.h>
#include <linux/sync_file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>

#include "base/device_node.h"
#include "base/format.h"
#include "base/mutex.h"
#include "base/units.h"
#include "drm/target_file.h"

namespace sluice::drm {
namespace {

constexpr unsigned kDrmMajor = 226;  // from the kernel's list of devices
// The GPU's own page size, independent of the CPU's: sizes and addresses of mappings are multiples of it.
constexpr std::uint64_t kGpuPageBytes = 4096;
// BOs of at least this size get an address that lets the kernel use its largest page table fragments.
constexpr std::uint64_t kLargeFragmentBytes = 2 * kMiB;
// The indirect packet silently drops the low five address bits.
constexpr std::uint32_t kIbAlignmentLeast = 32;

// libdrm drops a device's last reference before it removes it from its list, and aborts if another thread
// finds it there meanwhile.
Mutex open_devices;

// libdrm mostly returns -errno, but passes on drmIoctl's -1 in places (prime import, fence export). REQUIRES:
// errno was 0 before the call, outcome != 0.
int errno_of(int outcome) {
  if (outcome == -1 && errno != 0) return errno;
  return outcome < 0 ? -outcome : EIO;
}

template <class Call>
int checked(Call&& libdrm_call) {
  errno = 0;
  const int outcome = libdrm_call();
  return outcome == 0 ? 0 : errno_of(outcome);
}

amdgpu_cs_fence fence_of(amdgpu_context* context, const Job& job) {
  amdgpu_cs_fence fence{};
  fence.context = context;
  fence.ip_type = AMDGPU_HW_IP_DMA;
  fence.ip_instance = 0;
  fence.ring = job.ring;
  fence.fence = job.sequence;
  return fence;
}

// The file that libdrm_amdgpu (2.4.114, amdgpu_asic_id.c) reads line by line to its end at initialisation, to
// name the GPU. In a process that is about to become a container's, it is the container's file. A FIFO there
// would block, and a device, or a file of /proc, might never end. Without the file the GPU has no name, which
// nothing needs.
constexpr const char* kNamesOfGpus = "/usr/share/libdrm/amdgpu.ids";
constexpr off_t kNamesOfGpusMostBytes = 1 << 20;  // many times the size of libdrm's own

Result<void> check_names_of_gpus() {
  struct stat st {};
  if (::stat(kNamesOfGpus, &st) != 0) return {};
  if (S_ISREG(st.st_mode) && st.st_size > 0 && st.st_size <= kNamesOfGpusMostBytes) return {};
  return Error{
      EINVAL,
      formatted("{}, which libdrm reads, is not a regular file of 1 byte to 1 MiB; put libdrm's own file "
                "there, or none [SL-R04]",
                kNamesOfGpus)};
}

}  // namespace

DeviceState::~DeviceState() {
  if (handle == nullptr) return;
  const Lock lock(open_devices);
  (void)amdgpu_device_deinitialize(handle);
}

Result<UniqueFd> open_render_node(std::uint32_t minor) {
  return open_device_node(Device::render_node(minor), makedev(kDrmMajor, minor));
}

Result<Device> Device::open(std::uint32_t minor) {
  const std::string path = render_node(minor);
  // libdrm keeps a duplicate; ours is closed on return.
  SLUICE_TRY_ASSIGN(const UniqueFd file, open_render_node(minor));
  // Checked here because libdrm dereferences a null pointer if this ioctl fails.
  const auto driver = driver_name(file.get());
  if (!driver) return explain(path, driver.error());
  if (*driver != "amdgpu")  // unreached: no test
    return Error{
        ENODEV,
        formatted("{} belongs to driver {}, not to amdgpu; give the container the GPU's own node [SL-G48]",
                  path, *driver)};

  SLUICE_TRY(check_names_of_gpus());

  auto state = std::make_shared<DeviceState>();
  state->path = path;
  std::uint32_t version_major = 0;
  std::uint32_t version_minor = 0;
  const int refused = checked([&] {
    const Lock lock(open_devices);
    return amdgpu_device_initialize(file.get(), &version_major, &version_minor, &state->handle);
  });
  if (refused != 0) {
    state->handle = nullptr;
    return make_error(refused, "initialise libdrm_amdgpu on " + path);
  }
  amdgpu_gpu_info info{};
  if (const int err = checked([&] { return amdgpu_query_gpu_info(state->handle, &info); }); err != 0) {
    return make_error(err, "ask " + path + " for its GPU family");
  }
  drm_amdgpu_info_hw_ip dma{};
  if (const int err =
          checked([&] { return amdgpu_query_hw_ip_info(state->handle, AMDGPU_HW_IP_DMA, 0, &dma); });
      err != 0) {
    return make_error(err, "ask " + path + " for its DMA engines");
  }
  state->family = info.family_id;
  SLUICE_TRY_ASSIGN(state->generation, sdma_generation(info.family_id, dma.hw_ip_version_major));
  for (std::uint32_t ring = 0; ring < 32; ++ring) {
    if ((dma.available_rings >> ring & 1U) != 0) state->rings.push_back(ring);
  }
  if (state->rings.empty()) {  // unreached: no test
    return Error{ENODEV,
                 path + " offers no DMA ring to user space; boot without amdgpu.user_queue=2 [SL-G49]"};
  }
  state->ib_alignment_bytes = std::max(std::bit_ceil(dma.ib_start_alignment), kIbAlignmentLeast);
  return Device(std::move(state));
}

Result<std::uint32_t> Device::vram_losses() const {
  return drm::vram_losses(amdgpu_device_get_fd(state_->handle));
}

Bo::~Bo() {
  if (bo_ == nullptr) return;
  if (!cpu_.empty()) (void)amdgpu_bo_cpu_unmap(bo_);
  (void)amdgpu_bo_free(bo_);
}

void Bo::swap(Bo& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(bo_, other.bo_);
  std::swap(bytes_, other.bytes_);
  std::swap(handle_, other.handle_);
  std::swap(cpu_, other.cpu_);
}

Result<Bo> Bo::import(const Device& device, UniqueFd dmabuf) {
  amdgpu_bo_import_result imported{};
  if (const int err = checked([&] {
        return amdgpu_bo_import(device.state()->handle, amdgpu_bo_handle_type_dma_buf_fd,
                                static_cast<std::uint32_t>(dmabuf.get()), &imported);
      });
      err != 0) {
    return make_error(err, "import its dma-buf into " + device.path());
  }
  Bo bo(device.state(), imported.buf_handle, imported.alloc_size);
  SLUICE_TRY(bo.take_handle());
  return bo;
}

Result<Bo> Bo::from_user_memory(const Device& device, std::span<std::byte> memory) {
  amdgpu_bo* handle = nullptr;
  if (const int err = checked([&] {
        return amdgpu_create_bo_from_user_mem(device.state()->handle, memory.data(), memory.size(), &handle);
      });
      err != 0) {
    return make_error(err, formatted("register {} bytes of staging with {}", memory.size(), device.path()));
  }
  Bo bo(device.state(), handle, memory.size());
  SLUICE_TRY(bo.take_handle());
  return bo;
}

Result<Bo> Bo::allocate_gtt(const Device& device, std::uint64_t bytes) {
  const auto what = [&] { return formatted("{} bytes of GTT on {}", bytes, device.path()); };
  amdgpu_bo_alloc_request request{};
  request.alloc_size = bytes;
  request.phys_alignment = kGpuPageBytes;
  request.preferred_heap = AMDGPU_GEM_DOMAIN_GTT;
  amdgpu_bo* handle = nullptr;
  if (const int err = checked([&] { return amdgpu_bo_alloc(device.state()->handle, &request, &handle); });
      err != 0) {
    return make_error(err, "allocate " + what());
  }
  Bo bo(device.state(), handle, bytes);
  SLUICE_TRY(bo.take_handle());
  void* address = nullptr;
  if (const int err = checked([&] { return amdgpu_bo_cpu_map(bo.bo_, &address); }); err != 0) {
    return make_error(err, "map " + what());
  }
  bo.cpu_ = {static_cast<std::byte*>(address), static_cast<std::size_t>(bytes)};
  return bo;
}

Result<void> Bo::take_handle() {
  if (const int err = checked([&] { return amdgpu_bo_export(bo_, amdgpu_bo_handle_type_kms, &handle_); });
      err != 0) {
    return make_error(err, "ask for a BO's handle on " + device_->path);
  }
  return {};
}

VaMapping::~VaMapping() {
  if (mapped_) (void)amdgpu_bo_va_op_raw(device_->handle, bo_, 0, bytes_, address_, 0, AMDGPU_VA_OP_UNMAP);
  if (range_ != nullptr) (void)amdgpu_va_range_free(range_);
}

void VaMapping::swap(VaMapping& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(bo_, other.bo_);
  std::swap(range_, other.range_);
  std::swap(mapped_, other.mapped_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
}

Result<VaMapping> VaMapping::map(const Bo& bo, GpuAccess access) {
  VaMapping mapping;
  mapping.device_ = bo.device_;
  mapping.bo_ = bo.bo_;
  mapping.bytes_ = align_up(bo.bytes_, kGpuPageBytes);
  const auto fail = [&](int err) {
    return make_error(err, formatted("map {} bytes into the GPU address space of {}", mapping.bytes_,
                                     mapping.device_->path));
  };
  const std::uint64_t alignment = mapping.bytes_ >= kLargeFragmentBytes ? kLargeFragmentBytes : kGpuPageBytes;
  if (const int err = checked([&] {
        return amdgpu_va_range_alloc(mapping.device_->handle, amdgpu_gpu_va_range_general, mapping.bytes_,
                                     alignment, 0, &mapping.address_, &mapping.range_, 0);
      });
      err != 0) {
    mapping.range_ = nullptr;
    return fail(err);
  }
  std::uint64_t flags = AMDGPU_VM_PAGE_READABLE;
  if (access == GpuAccess::ReadWrite) flags |= AMDGPU_VM_PAGE_WRITEABLE;
  if (access == GpuAccess::Execute) flags |= AMDGPU_VM_PAGE_EXECUTABLE;
  if (const int err = checked([&] {
        return amdgpu_bo_va_op_raw(mapping.device_->handle, bo.bo_, 0, mapping.bytes_, mapping.address_,
                                   flags, AMDGPU_VA_OP_MAP);
      });
      err != 0) {
    return fail(err);
  }
  mapping.mapped_ = true;
  return mapping;
}

Context::~Context() {
  if (context_ != nullptr) (void)amdgpu_cs_ctx_free(context_);
}

void Context::swap(Context& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(context_, other.context_);
}

Result<Context> Context::make(const Device& device) {
  Context context;
  context.device_ = device.state();
  if (const int err =
          checked([&] { return amdgpu_cs_ctx_create(device.state()->handle, &context.context_); });
      err != 0) {
    context.context_ = nullptr;
    return make_error(err, "make a context on " + device.path());
  }
  return context;
}

Result<Job> Context::submit(std::uint32_t ring, const BoList& bos, std::span<const IbRange> ibs) {
  assert(!ibs.empty() && ibs.size() <= kIbSegmentsMax);
  static_assert(sizeof(BoList::Entry) == sizeof(drm_amdgpu_bo_list_entry));
  drm_amdgpu_bo_list_in list{};
  // No list object is created or named: the handles come with this submission.
  list.operation = ~0U;
  list.list_handle = ~0U;
  list.bo_number = static_cast<std::uint32_t>(bos.entries_.size());
  list.bo_info_size = sizeof(BoList::Entry);
  list.bo_info_ptr = reinterpret_cast<std::uintptr_t>(bos.entries_.data());

  std::array<drm_amdgpu_cs_chunk_ib, kIbSegmentsMax> ib_data{};
  std::array<drm_amdgpu_cs_chunk, 1 + kIbSegmentsMax> chunks{};
  int count = 0;
  chunks[0] = {AMDGPU_CHUNK_ID_BO_HANDLES, sizeof(list) / 4, reinterpret_cast<std::uintptr_t>(&list)};
  for (const IbRange& ib : ibs) {
    drm_amdgpu_cs_chunk_ib& data = ib_data[static_cast<std::size_t>(count)];
    data.va_start = ib.gpu_address;
    data.ib_bytes = ib.bytes;
    data.ip_type = AMDGPU_HW_IP_DMA;
    data.ring = ring;
    chunks[static_cast<std::size_t>(++count)] = {AMDGPU_CHUNK_ID_IB, sizeof(data) / 4,
                                                 reinterpret_cast<std::uintptr_t>(&data)};
  }
  Job job{ring, 0};
  if (const int err = checked([&] {
        return amdgpu_cs_submit_raw2(device_->handle, context_, 0, count + 1, chunks.data(), &job.sequence);
      });
      err != 0) {
    return make_error(err, formatted("submit to ring {} of {}", ring, device_->path));
  }
  return job;
}

Result<UniqueFd> Context::fence(const Job& job) {
  amdgpu_cs_fence fence = fence_of(context_, job);
  std::uint32_t fd = 0;
  if (const int err = checked([&] {
        return amdgpu_cs_fence_to_handle(device_->handle, &fence, AMDGPU_FENCE_TO_HANDLE_GET_SYNC_FILE_FD,
                                         &fd);
      });
      err != 0) {
    return make_error(err, "make a sync_file of a fence of " + device_->path);
  }
  return UniqueFd(static_cast<int>(fd));
}

Result<bool> Context::wait(const Job& job, std::chrono::nanoseconds timeout) {
  amdgpu_cs_fence fence = fence_of(context_, job);
  std::uint32_t expired = 0;
  if (const int err = checked([&] {
        return amdgpu_cs_query_fence_status(&fence, static_cast<std::uint64_t>(timeout.count()), 0, &expired);
      });
      err != 0) {
    return make_error(err, "wait for a job on " + device_->path);
  }
  return expired != 0;
}

Result<bool> fence_state(int sync_file) {
  sync_file_info info{};  // num_fences 0: only the status of the whole
  int outcome;
  do {
    outcome = ::ioctl(sync_file, SYNC_IOC_FILE_INFO, &info);
  } while (outcome < 0 && errno == EINTR);
  if (outcome < 0) return make_error(errno, "read the status of a fence");
  if (info.status < 0)
    return with_remedy(make_error(-info.status, "the GPU driver ended the job with an error"),
                       "; see the kernel's log for a page fault or a reset of the GPU [SL-G50]");
  return info.status > 0;
}

}  // namespace sluice::drm
