// SPDX-License-Identifier: MIT
// BOs that a process has imported into its KFD (IMPORT_DMABUF), imported again after RESTORE: under the
// handles that they had, mapped by the GPUs that had them mapped.
//
// Handles. Those of a GPU are numbers of their own, and an import gets the lowest that is free. RESTORE has
// made all others, so imports come in ascending order; what is free below one is held by further imports of
// the same memory, until the destructor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kfd/ioctl_call.h"

namespace sluice::kfd {

// More in all are refused: each costs the kernel an object and the restore two ioctls.
inline constexpr std::size_t kMostHeldHandles = 65'536;

class BoImport {
 public:
  // `kfd_fd`: borrowed, of the caller's own file, restored.
  explicit BoImport(int kfd_fd, IoctlFunction ioctl_function = system_ioctl)
      : kfd_fd_(kfd_fd), ioctl_(std::move(ioctl_function)) {}
  ~BoImport();  // frees what only held a handle
  BoImport(const BoImport&) = delete;
  BoImport& operator=(const BoImport&) = delete;

  struct Bo {
    std::uint64_t addr = 0;  // GPU VA
    std::uint64_t bytes = 0;
    std::uint32_t gpu_id = 0;  // user gpu_id
    std::uint32_t handle = 0;  // lower half; of one GPU they ascend
    std::vector<std::uint32_t> mapped_gpu_ids;
  };
  // `dmabuf`: borrowed. Errors: EINVAL for memory of fewer bytes, or that the KFD does not take; EEXIST for a
  // handle that is taken; E2BIG; ENOMEM.
  Result<void> import(const Bo& bo, int dmabuf);

 private:
  int kfd_fd_;
  IoctlFunction ioctl_;
  std::vector<std::uint64_t> held_;
};

}  // namespace sluice::kfd
