// SPDX-License-Identifier: MIT
#include "kfd/memory/ipc_memory.h"

#include <cerrno>

#include "base/format.h"

namespace sluice::kfd {

Result<bool> ipc_memory_exists(const KfdDevice& own, std::span<const std::uint32_t> gpu_ids,
                               const IpcHandle& handle) {
  constexpr std::uint64_t kAnyAddress = std::uint64_t{1} << 32;  // nothing is mapped: any GPU VA will do
  for (const std::uint32_t gpu_id : gpu_ids) {
    IpcImportArgs args{};
    args.va_addr = kAnyAddress;
    args.share_handle = handle;
    args.gpu_id = gpu_id;
    const int err = call_ioctl(own.ioctl_function(), own.fd(), kIocIpcImport, &args);
    if (err == EINVAL) continue;
    if (err != 0) return make_error(err, formatted("IPC_IMPORT_HANDLE on GPU {:#x}", gpu_id));
    FreeMemoryArgs free{args.handle};
    if (const int free_err = call_ioctl(own.ioctl_function(), own.fd(), kIocFreeMemory, &free); free_err != 0)
      return make_error(free_err, formatted("FREE_MEMORY_OF_GPU on GPU {:#x}", gpu_id));
    return true;
  }
  return false;
}

}  // namespace sluice::kfd
