// SPDX-License-Identifier: MIT
// The amdgpu driver that runs on this machine: Linux's own, or AMD's out-of-tree one (amdgpu-dkms), whose
// private data differ.
//
// Functions without state; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/result.h"

namespace sluice::kfd {

// The version of an out-of-tree driver ("6.10.5"); empty for Linux's own, which has none of its own.
std::string out_of_tree_version(const std::string& path = "/sys/module/amdgpu/version");

// Size in bytes of a BO's record in the private data that the driver here writes and expects. Asked by
// probe_bo_record_bytes() on the first GPU, through files opened for this: REQUIRES a process that never
// restores (CRIU's main process, a command). `kfd`: kfd_device_number()'s. Errors: those of
// KfdDevice::open(), read_topology() and probe_bo_record_bytes(); ENODEV: no GPU.
Result<std::uint32_t> ask_bo_record_bytes(dev_t kfd);

}  // namespace sluice::kfd
