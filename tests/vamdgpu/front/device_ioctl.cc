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

constexpr unsigned kDrmType = 'd';
constexpr unsigned kDmaBufType = 'b';
constexpr unsigned kSyncFileType = '>';
// Doorbell and MMIO pages of a process on a GPU, in the file of all of them.
constexpr std::uint64_t kDoorbellStride = 65536;
constexpr std::uint64_t kMmioAt = 32768;

struct Request {
  vam_file_kind device;
  std::uint32_t nr, bytes, op;
  void* argument;
};

void trace(Shared* shared, const vam_call& call, const Request& request, int result, bool injected) {
  vam_trace_record record{};
  record.pid = call.pid;
  record.tid = call.tid;
  record.device = static_cast<std::uint8_t>(request.device);
  record.injected = injected ? 1 : 0;
  record.nr = static_cast<std::uint16_t>(request.nr);
  record.op = request.op;
  record.result = result;
  record.gpu = VAM_FILE_AT(call.model, call.file)->gpu;
  vam_debug_trace(&shared->debug, &record);
}

int run_model(const vam_call& call, const Request& request, vam_again again, std::uint64_t* deadline) {
  if (request.device == VAM_FILE_KFD)
    return vam_kfd_ioctl(&call, request.nr, request.argument, request.bytes, again, deadline);
  return vam_drm_ioctl(&call, request.nr, request.argument, request.bytes, again, deadline);
}

bool allocates(const Request& request) {
  return request.device == VAM_FILE_KFD ? request.nr == VAM_KFD_ALLOC_MEMORY
                                        : request.nr == VAM_DRM_GEM_CREATE || request.nr == VAM_DRM_CTX;
}

// RESTORE needs what processes that are gone have left: memory, and SDMA queues of their numbers.
bool restores(const Request& request) {
  return request.device == VAM_FILE_KFD && request.nr == VAM_KFD_CRIU_OP && request.op == VAM_CRIU_RESTORE;
}

// Runs the ioctl, waiting as long as it wants to.
int run_request(const Local& machine, const vam_call& call, const Request& request) {
  Shared* shared = machine.shared;
  std::uint64_t deadline = 0;
  vam_again again = VAM_FIRST;
  bool reaped = false;
  int fault = 0, after = 0;
  for (;;) {
    std::uint32_t seen = 0;
    {
      Locked locked(shared->lock);
      if (again == VAM_FIRST && !reaped) {
        fault = vam_debug_fault(&shared->debug, request.device, request.nr, request.op, &after);
        if (fault != 0 && after == 0) {
          trace(shared, call, request, fault, true);
          return fault;
        }
      }
      if (!reaped && restores(request)) {
        reaped = true;
        reap(shared, machine.directory, true);
      }
      std::uint64_t wanted = 0;
      int result = run_model(call, request, again, &wanted);
      if (result == -ENOMEM && !reaped && allocates(request)) {  // memory that nobody has any more
        reaped = true;
        reap(shared, machine.directory, true);
        continue;
      }
      if (result != -VAM_WOULD_BLOCK) {
        if (fault != 0) result = fault;
        trace(shared, call, request, result, fault != 0);
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
  r.device = tag.kind == FileKind::Kfd ? VAM_FILE_KFD : VAM_FILE_RENDER;
  r.nr = _IOC_NR(request);
  r.bytes = _IOC_SIZE(request);
  // KFD looks at the number only, whatever the type (seen on Linux 6.12).
  if (r.device == VAM_FILE_RENDER && _IOC_TYPE(request) != kDrmType) return -ENOTTY;
  CallFrame frame;
  fill_call(machine, tag.index, &frame);
  const int known =
      r.device == VAM_FILE_KFD ? vam_kfd_arg_bytes(machine.model(), r.nr) : vam_drm_arg_bytes(r.nr);
  if (known < 0) {
    const int result = r.device == VAM_FILE_KFD ? vam_kfd_unknown(machine.model()) : -EINVAL;
    Locked locked(machine.shared->lock);
    trace(machine.shared, frame.call, r, result, false);
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
    r.op = vam_debug_op(r.device, r.nr, copy, static_cast<std::uint32_t>(size));
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
  void* const memory = raw::mmap(address, length, protection, flags, fd, static_cast<off_t>(offset));
  const int error = errno;
  raw::close(fd);
  errno = error;
  return memory;
}

int locate(const Local& machine, FileTag tag, std::uint64_t offset, std::size_t length,
           vam_map_result* result) {
  Locked locked(machine.shared->lock);
  vam_model* model = machine.model();
  if (tag.kind == FileKind::DmaBuf) {
    const vam_bo* bo = VAM_BO_AT(model, tag.index);
    if (length == 0 || offset > bo->size || length > bo->size - offset) return -EINVAL;
    *result = {VAM_MAP_POOL, bo->gpu, tag.index, bo->pool, 0, bo->pool_offset + offset};
    return 0;
  }
  CallFrame frame;
  fill_call(machine, tag.index, &frame);
  const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const int error = vam_mmap(&frame.call, offset, (length + page - 1) & ~(page - 1), result);
  // The first touch is not seen here, so that the map counts as one.
  if (error == 0 && result->what == VAM_MAP_POOL) vam_bo_touched(machine.model(), result->bo);
  return error;
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
