// SPDX-License-Identifier: MIT
// Memory that processes share by the IPC handles of AMD's out-of-tree driver.
//
// A function without state; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "kfd/device.h"
#include "kfd/uapi.h"

namespace sluice::kfd {

// Whether a process has memory with this handle. RESTORE of a BO with the handle would take that memory. It
// is imported into the caller's KFD process, and freed again. `gpu_ids`: all GPUs, because the driver finds
// memory of another GPU as little as none. Where there is none, the driver writes a line to the kernel's log.
// REQUIRES: the KFD process has a VM on each GPU, as after probe_bo_record_bytes(). Errors: the calls'.
Result<bool> ipc_memory_exists(const KfdDevice& own, std::span<const std::uint32_t> gpu_ids,
                               const IpcHandle& handle);

}  // namespace sluice::kfd
