// SPDX-License-Identifier: MIT
#include "kfd/memory/bo_import.h"

#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/format.h"
#include "kfd/uapi.h"

namespace sluice::kfd {

BoImport::~BoImport() {
  for (const std::uint64_t handle : held_) {
    FreeMemoryArgs args{handle};
    (void)call_ioctl(ioctl_, kfd_fd_, kIocFreeMemory, &args);
  }
}

Result<void> BoImport::import(const Bo& bo, int dmabuf) {
  const std::string name = "the BO at " + hex(bo.addr) + " of GPU " + std::to_string(bo.gpu_id);
  const off_t bytes = ::lseek(dmabuf, 0, SEEK_END);
  if (bytes < 0) return make_error(errno, "size of the shared memory for " + name);
  if (static_cast<std::uint64_t>(bytes) < bo.bytes) {
    return Error{
        EINVAL,
        formatted("the shared memory for {} has {} bytes instead of {}; use another checkpoint [SL-G01]",
                  name, bytes, bo.bytes)};
  }
  const std::uint64_t wanted = std::uint64_t{bo.gpu_id} << 32 | bo.handle;
  for (;;) {
    if (held_.size() > kMostHeldHandles) {
      return Error{E2BIG,
                   formatted("handle {} of {} needs more than {} placeholder handles below it; use another "
                             "checkpoint [SL-G02]",
                             bo.handle, name, kMostHeldHandles)};
    }
    ImportDmabufArgs args{bo.addr, 0, bo.gpu_id, static_cast<std::uint32_t>(dmabuf)};
    if (const int err = call_ioctl(ioctl_, kfd_fd_, kIocImportDmabuf, &args); err != 0)
      return make_error(err, "IMPORT_DMABUF of " + name);
    if (args.handle == wanted) break;
    held_.push_back(args.handle);
    if (args.handle > wanted) {
      return Error{EEXIST,
                   formatted("handle {} of {} is taken: the kernel assigned {:#x}; restore under the dump's "
                             "kernel, or report this [SL-G03]",
                             bo.handle, name, args.handle)};
    }
  }
  if (bo.mapped_gpu_ids.empty()) return {};
  MapMemoryArgs map{wanted, reinterpret_cast<std::uintptr_t>(bo.mapped_gpu_ids.data()),
                    static_cast<std::uint32_t>(bo.mapped_gpu_ids.size()), 0};
  if (const int err = call_ioctl(ioctl_, kfd_fd_, kIocMapMemory, &map); err != 0)
    return make_error(err, "MAP_MEMORY_TO_GPU of " + name);
  return {};
}

}  // namespace sluice::kfd
