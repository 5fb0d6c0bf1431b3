// SPDX-License-Identifier: MIT
// SYNCOBJ_EVENTFD: eventfds of this process that are signalled when a point of a syncobj is.
#pragma once

#include "local.h"

namespace vamdgpu {

// Starts to watch. 0 or -errno (-EBADF no eventfd). Call with the shared lock held.
int watch(const Local& local, std::uint32_t syncobj, std::uint64_t point, bool available, int fd);

}  // namespace vamdgpu
