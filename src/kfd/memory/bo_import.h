// SPDX-License-Identifier: MIT
// Imports again, after RESTORE, the BOs that a process had imported into its KFD (IMPORT_DMABUF): under their
// old handles, mapped by the same GPUs.
//
// Handles: each GPU numbers its own, and an import gets the lowest free one. RESTORE has made all other BOs,
// so imports come in ascending order. Free handles below the wanted one are held by further imports of the
// same memory, until the destructor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kfd/ioctl_call.h"

namespace sluice::kfd {

// More in total are refused: each costs the kernel an object and the restore two ioctls.
inline constexpr std::size_t kMostHeldHandles = 65'536;

class BoImport {
 public:
  // `kfd_fd`: borrowed, the caller's own file, restored.
  explicit BoImport(int kfd_fd, IoctlFunction ioctl_function = system_ioctl)
      : kfd_fd_(kfd_fd), ioctl_(std::move(ioctl_function)) {}
  ~BoImport();  // releases imports that only held a handle
  BoImport(const BoImport&) = delete;
  BoImport& operator=(const BoImport&) = delete;

  struct Bo {
    std::uint64_t addr = 0;  // GPU VA
    std::uint64_t bytes = 0;
    std::uint32_t gpu_id = 0;  // user gpu_id
    std::uint32_t handle = 0;  // lower half; ascending per GPU
    std::vector<std::uint32_t> mapped_gpu_ids;
  };
  // `dmabuf`: borrowed. Errors: EINVAL for memory of fewer bytes, or that the KFD refuses; EEXIST for a
  // handle in use; E2BIG; ENOMEM.
  Result<void> import(const Bo& bo, int dmabuf);

 private:
  int kfd_fd_;
  IoctlFunction ioctl_;
  std::vector<std::uint64_t> held_;
};

}  // namespace sluice::kfd
