// SPDX-License-Identifier: MIT
// ioctl and mmap on files of the machine: argument copies as the kernel makes them, injected faults, the
// trace, and waiting outside the lock.
#include <fcntl.h>
#include <linux/sync_file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "devices.h"
#include "raw.h"

namespace vamdgpu {
namespace {

constexpr unsigned kKfdType = 'K';
constexpr unsigned kDrmType = 'd';
constexpr unsigned kDmaBufType = 'b';
constexpr unsigned kSyncFileType = '>';
// Doorbell and MMIO pages of a process on a GPU, in the file of all of them.
constexpr std::uint64_t kDoorbellStride = 65536;
constexpr std::uint64_t kMmioAt = 32768;

std::uint32_t word_at(const void* argument, std::uint32_t bytes, std::uint32_t offset) {
  std::uint32_t value = 0;
  if (offset + 4 <= bytes) std::memcpy(&value, static_cast<const char*>(argument) + offset, 4);
  return value;
}

// The operation within an ioctl, where it has several.
std::uint32_t op_of(Device device, std::uint32_t nr, const void* argument, std::uint32_t bytes) {
  if (device == Device::Kfd) return nr == VAM_KFD_CRIU_OP ? word_at(argument, bytes, 48) : 0;
  switch (nr) {
    case VAM_DRM_GEM_VA:
      return word_at(argument, bytes, 8);
    case VAM_DRM_CTX:
    case VAM_DRM_BO_LIST:
      return word_at(argument, bytes, 0);
    case VAM_DRM_GEM_OP:
    case VAM_DRM_GEM_METADATA:
      return word_at(argument, bytes, 4);
    case VAM_DRM_INFO:
      return word_at(argument, bytes, 12);
    case VAM_DRM_FENCE_TO_HANDLE:
      return word_at(argument, bytes, 24);
    default:
      return 0;
  }
}

// The fault rule that this call falls under, or nullptr.
FaultRule* fault_for(Shared* shared, Device device, std::uint32_t nr, std::uint32_t op) {
  for (FaultRule& rule : shared->faults) {
    if (!rule.active || rule.device != device || rule.nr != nr) continue;
    if (rule.op >= 0 && static_cast<std::uint32_t>(rule.op) != op) continue;
    const std::uint64_t seen = rule.seen++;
    if (seen < rule.skip || (rule.times != 0 && seen >= std::uint64_t{rule.skip} + rule.times)) continue;
    ++rule.hit;
    return &rule;
  }
  return nullptr;
}

void trace(Shared* shared, const vam_call& call, Device device, std::uint32_t nr, std::uint32_t op,
           int result, bool injected) {
  TraceRecord& record = shared->trace[shared->trace_count++ % kTraceRecords];
  record = {shared->trace_count,
            call.pid,
            call.tid,
            device,
            static_cast<std::uint8_t>(injected),
            static_cast<std::uint16_t>(nr),
            op,
            result,
            VAM_FILE_AT(call.model, call.file)->gpu};
  ++shared->calls[static_cast<int>(device)][nr & 255];
  if (device == Device::Kfd && nr == VAM_KFD_CRIU_OP) ++shared->criu_calls[op & 7];
}

struct Request {
  Device device;
  std::uint32_t nr, bytes, op;
  void* argument;
};

int run_model(const vam_call& call, const Request& request, vam_again again, std::uint64_t* deadline) {
  if (request.device == Device::Kfd)
    return vam_kfd_ioctl(&call, request.nr, request.argument, request.bytes, again, deadline);
  return vam_drm_ioctl(&call, request.nr, request.argument, request.bytes, again, deadline);
}

bool allocates(const Request& request) {
  return request.device == Device::Kfd ? request.nr == VAM_KFD_ALLOC_MEMORY
                                       : request.nr == VAM_DRM_GEM_CREATE || request.nr == VAM_DRM_CTX;
}

// Runs the ioctl, waiting as long as it wants to.
int run_request(const Local& machine, const vam_call& call, const Request& request) {
  Shared* shared = machine.shared;
  std::uint64_t deadline = 0;
  vam_again again = VAM_FIRST;
  bool reaped = false;
  FaultRule* rule = nullptr;
  for (;;) {
    std::uint32_t seen = 0;
    {
      Locked locked(shared->lock);
      if (again == VAM_FIRST && !reaped) {
        rule = fault_for(shared, request.device, request.nr, request.op);
        if (rule != nullptr && !rule->after) {
          trace(shared, call, request.device, request.nr, request.op, -rule->error, true);
          return -rule->error;
        }
      }
      std::uint64_t wanted = 0;
      int result = run_model(call, request, again, &wanted);
      if (result == -ENOMEM && !reaped && allocates(request)) {  // memory that nobody has any more
        reaped = true;
        reap(shared, machine.directory, true);
        continue;
      }
      if (result != -VAM_WOULD_BLOCK) {
        if (rule != nullptr) result = -rule->error;
        trace(shared, call, request.device, request.nr, request.op, result, rule != nullptr);
        return result;
      }
      if (again == VAM_FIRST) deadline = wanted;
      seen = shared->change.load();
    }
    const int error = wait_for_change(shared, seen, deadline);
    if (error == EINTR) return -EINTR;
    again = error == ETIMEDOUT ? VAM_EXPIRED : VAM_AGAIN;
  }
}

int dmabuf_ioctl(unsigned long request) {
  // DMA_BUF_IOCTL_SYNC: CPU maps are coherent here. The others do not exist.
  return _IOC_TYPE(request) == kDmaBufType && _IOC_NR(request) == 0 ? 0 : -ENOTTY;
}

}  // namespace

int device_ioctl(const Local& machine, FileTag tag, unsigned long request, void* argument) {
  if (tag.kind == FileKind::DmaBuf) return dmabuf_ioctl(request);
  if (tag.kind == FileKind::Syncobj) return -ENOTTY;
  Request r{};
  r.device = tag.kind == FileKind::Kfd ? Device::Kfd : Device::Render;
  r.nr = _IOC_NR(request);
  r.bytes = _IOC_SIZE(request);
  if (_IOC_TYPE(request) != (r.device == Device::Kfd ? kKfdType : kDrmType)) return -ENOTTY;
  CallFrame frame;
  fill_call(machine, tag.index, &frame);
  const int known =
      r.device == Device::Kfd ? vam_kfd_arg_bytes(machine.model(), r.nr) : vam_drm_arg_bytes(r.nr);
  if (known < 0) {
    const int result = r.device == Device::Kfd ? -ENOTTY : -EINVAL;
    Locked locked(machine.shared->lock);
    trace(machine.shared, frame.call, r.device, r.nr, 0, result, false);
    return result;
  }
  // Bigger arguments than any fixed one: only SVM, whose attributes follow.
  alignas(16) char fixed[512];
  const std::size_t size = std::max<std::size_t>(r.bytes, static_cast<std::size_t>(known));
  char* copy = size <= sizeof(fixed) ? fixed : static_cast<char*>(std::malloc(size));
  if (copy == nullptr) return -ENOMEM;
  std::memset(copy, 0, std::max<std::size_t>(size, 64));
  int result = 0;
  const bool bad_pointer = r.bytes != 0 && reinterpret_cast<std::uintptr_t>(argument) < 4096;
  if (bad_pointer) {
    result = -EFAULT;
  } else {
    if ((_IOC_DIR(request) & _IOC_WRITE) != 0) std::memcpy(copy, argument, r.bytes);
    r.argument = copy;
    r.op = op_of(r.device, r.nr, copy, static_cast<std::uint32_t>(size));
    result = run_request(machine, frame.call, r);
    if ((_IOC_DIR(request) & _IOC_READ) != 0) std::memcpy(argument, copy, r.bytes);  // even after an error
  }
  if (copy != fixed) std::free(copy);
  return result;
}

// ---- fences
// ------------------------------------------------------------------------------------------------------------

namespace {

// 0 active, 1 signalled, -errno failed: the number of bytes in the FIFO tells.
int fence_status(int fd) {
  int bytes = 0;
  if (::syscall(SYS_ioctl, fd, FIONREAD, &bytes) != 0) return -errno;
  return bytes <= 1 ? bytes : 1 - bytes;
}

int file_info(int fd, sync_file_info* info) {
  const int status = fence_status(fd);
  if (info->num_fences != 0) {
    sync_fence_info fence{};
    std::memcpy(fence.obj_name, "sdma", 5);
    std::memcpy(fence.driver_name, "amdgpu", 7);
    fence.status = status;
    if (info->sync_fence_info == 0) return -EFAULT;
    std::memcpy(reinterpret_cast<void*>(info->sync_fence_info), &fence, sizeof(fence));
  }
  std::memset(info->name, 0, sizeof(info->name));
  std::memcpy(info->name, "amdgpu-sdma", 12);
  info->status = status;
  info->num_fences = 1;
  return 0;
}

}  // namespace

int fence_ioctl(const Local&, int fd, unsigned long request, void* argument) {
  if (_IOC_TYPE(request) != kSyncFileType) return -ENOTTY;
  if (reinterpret_cast<std::uintptr_t>(argument) < 4096) return -EFAULT;
  if (_IOC_NR(request) == _IOC_NR(SYNC_IOC_FILE_INFO)) {
    auto* info = static_cast<sync_file_info*>(argument);
    if (info->flags != 0 || info->pad != 0) return -EINVAL;
    return file_info(fd, info);
  }
  return -ENOTTY;
}

// ---- mmap
// --------------------------------------------------------------------------------------------------------------

namespace {

void* map_file(const char* path, void* address, std::size_t length, int protection, int flags,
               std::uint64_t offset) {
  const int fd = raw::openat(AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) return MAP_FAILED;
  const long result = ::syscall(SYS_mmap, address, length, protection, flags, fd, offset);
  const int error = errno;
  raw::close(fd);
  errno = error;
  return reinterpret_cast<void*>(result);
}

int locate(const Local& machine, FileTag tag, std::uint64_t offset, std::size_t length,
           vam_map_result* result) {
  Locked locked(machine.shared->lock);
  const vam_model* model = machine.model();
  if (tag.kind == FileKind::DmaBuf) {
    const vam_bo* bo = VAM_BO_AT(model, tag.index);
    if (length == 0 || offset > bo->size || length > bo->size - offset) return -EINVAL;
    *result = {VAM_MAP_POOL, bo->gpu, tag.index, bo->pool, 0, bo->pool_offset + offset};
    return 0;
  }
  CallFrame frame;
  fill_call(machine, tag.index, &frame);
  const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return vam_mmap(&frame.call, offset, (length + page - 1) & ~(page - 1), result);
}

}  // namespace

void* device_mmap(const Local& machine, FileTag tag, void* address, std::size_t length, int protection,
                  int flags, std::uint64_t offset) {
  vam_map_result where;
  int error = tag.kind == FileKind::Syncobj || tag.kind == FileKind::Fence
                  ? -ENODEV
                  : locate(machine, tag, offset, length, &where);
  // A private map of device memory may only reserve addresses.
  if (error == 0 && (flags & MAP_TYPE) == MAP_PRIVATE && protection != PROT_NONE) error = -EINVAL;
  if (error != 0) {
    errno = -error;
    return MAP_FAILED;
  }
  const char* directory = machine.directory;
  if (where.what == VAM_MAP_POOL || where.what == VAM_MAP_EVENTS) {
    const StatePath path = pool_path(directory, static_cast<vam_pool>(where.pool), where.gpu);
    return map_file(path.c_str(), address, length, protection, flags, where.pool_offset);
  }
  const std::uint64_t slot = std::uint64_t{where.process} * VAMDGPU_MAX_GPUS + where.gpu;
  const StatePath path(directory, "doorbells", UINT64_MAX);
  void* mapped = map_file(path.c_str(), address, length, protection, flags,
                          slot * kDoorbellStride + (where.what == VAM_MAP_MMIO ? kMmioAt : 0));
  if (mapped != MAP_FAILED) ::madvise(mapped, length, MADV_DONTFORK);  // VM_DONTCOPY
  return mapped;
}

}  // namespace vamdgpu
