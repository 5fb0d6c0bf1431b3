// SPDX-License-Identifier: MIT
// The render node's ioctls as the lists of questions use them. Layouts: <drm/amdgpu_drm.h>.
#pragma once

#include <cstdint>
#include <string>

#include "list.h"

namespace vamdgpu::questions {

constexpr std::uint64_t kCpu = 1, kGtt = 2, kVram = 4, kGds = 8, kDoorbell = 0x40;
constexpr std::uint64_t kCpuAccess = 1, kNoCpuAccess = 2, kUswc = 4, kCleared = 8, kContiguous = 0x20,
                        kAlwaysValid = 0x40, kExplicitSync = 0x80, kMqd = 0x100, kWipe = 0x200,
                        kEncrypted = 0x400, kPreemptible = 0x800, kDiscardable = 0x1000, kCoherent = 0x2000,
                        kUncached = 0x4000, kExtCoherent = 0x8000, kGfx12Dcc = 0x10000;
constexpr unsigned kMap = 1, kUnmap = 2, kClear = 3, kReplace = 4;
constexpr unsigned kReadable = 2, kWriteable = 4, kExecutable = 8, kPrt = 0x10, kRwx = 0xe;
constexpr std::uint64_t kFreeVa = std::uint64_t{1} << 32;  // where the lists map

struct Bo {
  int error = 0;
  std::uint32_t handle = 0;
};
Bo create(int fd, std::uint64_t bytes, std::uint64_t alignment, std::uint64_t domains, std::uint64_t flags);

// "ok 4096 align 4096 domains 0x4 flags 0x1", as GEM_OP says it; the errno's name when it is not made. The BO
// is closed again.
std::string created(int fd, std::uint64_t bytes, std::uint64_t alignment, std::uint64_t domains,
                    std::uint64_t flags);
std::string described(int fd, std::uint32_t handle);
int close_bo(int fd, std::uint32_t handle);
// GEM_MMAP's offset, 0 when it is refused.
std::uint64_t mmap_offset(int fd, std::uint32_t handle);
// nullptr with errno.
void* map_bo(int fd, std::uint32_t handle, std::uint64_t bytes);

struct Va {
  std::uint32_t handle;
  unsigned operation;
  unsigned flags;
  std::uint64_t address, offset, bytes;
};
std::string va(int fd, const Va& va, unsigned argument_bytes = 40);
// "ok 2: 0x100000000+0x1000@0 flags 0xe, ...", as GET_MAPPING_INFO says it.
std::string mappings(int fd, std::uint32_t handle);
// "ok 2: handle 1 4096 domains 0x4 flags 0x1 align 1, ..." of GEM_LIST_HANDLES.
std::string listed(int fd);
// A descriptor, or minus errno.
int export_bo(int fd, std::uint32_t handle, unsigned flags);
Bo import_bo(int fd, int dmabuf);

}  // namespace vamdgpu::questions
