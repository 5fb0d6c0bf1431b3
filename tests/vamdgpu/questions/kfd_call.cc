// SPDX-License-Identifier: MIT
// See kfd_call.h.
#include "kfd_call.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

namespace vamdgpu::questions {

std::string asked(int fd, unsigned nr, Args& args, std::initializer_list<unsigned> shown) {
  const int error = kfd(fd, nr, args);
  std::string answer = name_of(error);
  if (error != 0) return answer;
  for (const unsigned at : shown) answer += " " + std::to_string(args.get32(at));
  return answer;
}

Kfd open_kfd(List& list) {
  Kfd kfd;
  kfd.gpu = first_gpu();
  kfd.render = open_render(kfd.gpu);
  kfd.fd = ::open("/dev/kfd", O_RDWR | O_CLOEXEC);
  if (kfd.fd < 0 || kfd.render < 0) {
    list.fail(std::string("/dev/kfd or a render node: ") + name_of(errno));
    kfd.fd = -1;
    return kfd;
  }
  Args acquire(8);
  acquire.u32(0, static_cast<std::uint32_t>(kfd.render)).u32(4, kfd.gpu.id);
  if (const int error = questions::kfd(kfd.fd, 0x15, acquire); error != 0) {
    list.fail("ACQUIRE_VM: " + name_of(error));
    kfd.fd = -1;
  }
  return kfd;
}

Memory allocate(const Kfd& kfd, std::uint64_t va, std::uint64_t bytes, std::uint32_t flags,
                std::uint64_t user) {
  Args args(40);
  args.u64(0, va).u64(8, bytes).u64(24, user).u32(32, kfd.gpu.id).u32(36, flags);
  const int error = questions::kfd(kfd.fd, 0x16, args);
  if (error != 0) return {error, 0, 0, va, bytes};
  return {0, args.get64(16), args.get64(24), va, bytes};
}

namespace {

int map_or_unmap(const Kfd& kfd, const Memory& memory, unsigned nr) {
  Args args(24);
  args.u64(0, memory.handle).pointer(8, &kfd.gpu.id).u32(16, 1);
  return questions::kfd(kfd.fd, nr, args);
}

}  // namespace

int map_to_gpu(const Kfd& kfd, const Memory& memory) {
  return map_or_unmap(kfd, memory, 0x18);
}
int unmap_from_gpu(const Kfd& kfd, const Memory& memory) {
  return map_or_unmap(kfd, memory, 0x19);
}

int free_memory(const Kfd& kfd, const Memory& memory) {
  Args args(8);
  args.u64(0, memory.handle);
  return questions::kfd(kfd.fd, 0x17, args);
}

Memory mapped(const Kfd& kfd, std::uint64_t va, std::uint64_t bytes, std::uint32_t flags) {
  Memory memory = allocate(kfd, va, bytes, flags);
  if (memory.error != 0) return memory;
  memory.error = map_to_gpu(kfd, memory);
  if (memory.error != 0) memory.handle = 0;
  return memory;
}

SaveArea save_area(const Gpu& gpu) {
  const auto pages = [](std::uint64_t bytes) { return (bytes + kPage - 1) & ~(kPage - 1); };
  const auto value = [&gpu](const char* name) { return gpu.property(name); };
  const std::uint64_t xccs = std::max<std::uint64_t>(value("num_xcc"), 1);
  const std::uint64_t units = value("simd_count") / std::max<std::uint64_t>(value("simd_per_cu"), 1) / xccs;
  const std::uint64_t engines =
      value("array_count") / std::max<std::uint64_t>(value("simd_arrays_per_engine"), 1);
  const std::uint64_t waves = std::min(units * 40, engines * 512);
  const std::uint64_t of_unit =
      (0x80000) + 0x4000 + 0x10000 + 0x1000;  // VGPRs, SGPRs, LDS, hardware registers
  const std::uint64_t stack = pages(40 + waves * 8 + 8);
  SaveArea area{};
  area.xccs = static_cast<std::uint32_t>(xccs);
  area.ctl_stack_bytes = static_cast<std::uint32_t>(stack);
  area.ctx_bytes = static_cast<std::uint32_t>(stack + pages(units * of_unit));
  area.debug_bytes = static_cast<std::uint32_t>((waves * 32 + 63) & ~std::uint64_t{63});
  return area;
}

QueueBuffers queue_buffers(const Kfd& kfd, std::uint64_t va) {
  QueueBuffers buffers;
  buffers.ring = mapped(kfd, va, kPage);
  buffers.write_pointer = mapped(kfd, va + 0x10000, kPage);
  buffers.read_pointer = mapped(kfd, va + 0x20000, kPage);
  buffers.eop = mapped(kfd, va + 0x30000, kPage);
  buffers.area = mapped(kfd, va + 0x10000000, save_area(kfd.gpu).whole(), kAllocVram | kWritable);
  return buffers;
}

Args create_queue(const Kfd& kfd, const QueueBuffers& buffers, unsigned type) {
  const SaveArea area = save_area(kfd.gpu);
  Args args(96);
  args.u64(0, buffers.ring.va).u64(8, buffers.write_pointer.va).u64(16, buffers.read_pointer.va);
  args.u32(32, kPage).u32(36, kfd.gpu.id).u32(40, type).u32(44, 100).u32(48, 7);
  if (type != kCompute && type != kAql) return args;
  args.u64(56, buffers.eop.va).u64(64, kPage).u64(72, buffers.area.va);
  args.u32(80, area.ctx_bytes).u32(84, area.ctl_stack_bytes);
  return args;
}

int destroy_queue(const Kfd& kfd, std::uint32_t queue) {
  Args args(8);
  args.u32(0, queue);
  return questions::kfd(kfd.fd, 0x03, args);
}

}  // namespace vamdgpu::questions
