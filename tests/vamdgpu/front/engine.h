// SPDX-License-Identifier: MIT
// The virtual SDMA engines of one process: threads that take its jobs, read the indirect buffers, and copy.
//
// Threads start at the first submission and end when the process closes its last DRM file with contexts, or
// after a while without work. Each has all signals blocked and a descriptor table of its own, so that its
// files are never seen among the process's. After fork the child starts its own when it needs them.
#pragma once

#include "local.h"

namespace vamdgpu {

// A job was made by this process. Call with the shared lock held.
void engine_submit(const Local& local, std::uint32_t job);

// Ends and joins this process's engine threads if it has no DRM context left. Call without the lock.
void engine_stop_if_unused(const Local& local);

}  // namespace vamdgpu
