// SPDX-License-Identifier: MIT
// /dev/kfd's ioctls as the lists of questions use them. Layouts: <linux/kfd_ioctl.h>.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "list.h"

namespace vamdgpu::questions {

constexpr std::uint32_t kNoGpu = 0x7777;  // a gpu_id that no machine has
constexpr std::uint32_t kAllocVram = 1, kAllocGtt = 2, kAllocUserptr = 4, kAllocDoorbell = 8,
                        kAllocMmio = 0x10;
constexpr std::uint32_t kContiguousBo = 1U << 23, kUncachedBo = 1U << 25, kCoherentBo = 1U << 26,
                        kQueueMemory = 1U << 27, kPublic = 1U << 29, kExecutableBo = 1U << 30,
                        kWritable = 1U << 31;
constexpr std::uint64_t kDoorbellBytes = 8192;
constexpr std::uint64_t kKfdVa = std::uint64_t{1} << 40;  // where the lists put their memory

// "ok", with the words at these offsets, or the errno's name.
std::string asked(int fd, unsigned nr, Args& args, std::initializer_list<unsigned> shown = {});
inline std::string asked(int fd, unsigned nr, Args&& args, std::initializer_list<unsigned> shown = {}) {
  return asked(fd, nr, args, shown);
}

// A KFD file with the VM of the machine's GPU.
struct Kfd {
  int fd = -1, render = -1;
  Gpu gpu;
};
// Opens both and acquires the VM; `fd` is -1 after a line in the list that says what is not there.
Kfd open_kfd(List& list);

struct Memory {
  int error = 0;
  std::uint64_t handle = 0, offset = 0, va = 0, bytes = 0;
};
// `user`: mmap_offset going in, of USERPTR and DOORBELL.
Memory allocate(const Kfd& kfd, std::uint64_t va, std::uint64_t bytes, std::uint32_t flags,
                std::uint64_t user = 0);
int map_to_gpu(const Kfd& kfd, const Memory& memory);
int unmap_from_gpu(const Kfd& kfd, const Memory& memory);
int free_memory(const Kfd& kfd, const Memory& memory);
// VRAM or GTT at `va`, mapped to the GPU; handle 0 when that fails.
Memory mapped(const Kfd& kfd, std::uint64_t va, std::uint64_t bytes,
              std::uint32_t flags = kAllocGtt | kWritable);

// The save area of a compute queue since Linux 6.12, by the kernel's formula for gfx9 (kfd_queue.c), and what
// CREATE_QUEUE wants to hear of it.
struct SaveArea {
  std::uint32_t ctl_stack_bytes, ctx_bytes, debug_bytes, xccs;
  std::uint64_t whole() const {
    return ((std::uint64_t{ctx_bytes} + debug_bytes) * xccs + kPage - 1) & ~(kPage - 1);
  }
};
SaveArea save_area(const Gpu& gpu);

// A queue's buffers, each a mapping of its own.
struct QueueBuffers {
  Memory ring, write_pointer, read_pointer, eop, area;
  bool made() const { return area.handle != 0 && ring.handle != 0 && eop.handle != 0; }
};
QueueBuffers queue_buffers(const Kfd& kfd, std::uint64_t va);
constexpr unsigned kCompute = 0, kSdma = 1, kAql = 2, kSdmaXgmi = 3, kSdmaByEngine = 4;
// CREATE_QUEUE's argument for these buffers, with a ring of one page.
Args create_queue(const Kfd& kfd, const QueueBuffers& buffers, unsigned type);
int destroy_queue(const Kfd& kfd, std::uint32_t queue);

}  // namespace vamdgpu::questions
