// SPDX-License-Identifier: MIT
// The device half of the front: ioctls and mmap on device files, dma-bufs and fences. The libc functions it
// wraps are ioctl, mmap, mmap64 and close; all else works on the real descriptors behind them.
#pragma once

#include "local.h"

namespace vamdgpu {

// ioctl on a file of the machine. 0 or more, or -errno.
int device_ioctl(const Local& local, FileTag tag, unsigned long request, void* argument);
int fence_ioctl(const Local& local, int fd, unsigned long request, void* argument);

// mmap on a file of the machine. Address or MAP_FAILED with errno.
void* device_mmap(const Local& local, FileTag tag, void* address, std::size_t length, int protection,
                  int flags, std::uint64_t offset);

}  // namespace vamdgpu
