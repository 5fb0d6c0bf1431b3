// SPDX-License-Identifier: MIT
// See render.h.
#include "render.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace vamdgpu::questions {

Bo create(int fd, std::uint64_t bytes, std::uint64_t alignment, std::uint64_t domains, std::uint64_t flags) {
  Args args(32);
  args.u64(0, bytes).u64(8, alignment).u64(16, domains).u64(24, flags);
  const int error = drm(fd, 0x40, args);
  return {error, error == 0 ? args.get32(0) : 0};
}

std::string described(int fd, std::uint32_t handle) {
  std::array<std::uint64_t, 4> info{};
  Args args(16);
  args.u32(0, handle).u32(4, 0).pointer(8, info.data());
  const int error = drm(fd, 0x50, args);
  if (error != 0) return name_of(error);
  return "ok " + std::to_string(info[0]) + " align " + std::to_string(info[1]) + " domains " + hex(info[2]) +
         " flags " + hex(info[3]);
}

int close_bo(int fd, std::uint32_t handle) {
  Args args(8);
  args.u32(0, handle);
  return drm(fd, 0x09, args);
}

std::string created(int fd, std::uint64_t bytes, std::uint64_t alignment, std::uint64_t domains,
                    std::uint64_t flags) {
  const Bo bo = create(fd, bytes, alignment, domains, flags);
  if (bo.error != 0) return name_of(bo.error);
  std::string answer = described(fd, bo.handle);
  close_bo(fd, bo.handle);
  return answer;
}

std::uint64_t mmap_offset(int fd, std::uint32_t handle) {
  Args args(8);
  args.u32(0, handle);
  return drm(fd, 0x41, args) == 0 ? args.get64(0) : 0;
}

void* map_bo(int fd, std::uint32_t handle, std::uint64_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                    static_cast<off_t>(mmap_offset(fd, handle)));
  return at == MAP_FAILED ? nullptr : at;
}

std::string va(int fd, const Va& va, unsigned argument_bytes) {
  Args args(argument_bytes);
  args.u32(0, va.handle).u32(8, va.operation).u32(12, va.flags);
  args.u64(16, va.address).u64(24, va.offset).u64(32, va.bytes);
  return name_of(drm(fd, 0x48, args));
}

std::string mappings(int fd, std::uint32_t handle) {
  constexpr std::uint32_t kMost = 16;
  std::array<std::array<std::uint64_t, 4>, kMost> entries{};
  Args args(24);
  args.u32(0, handle).u32(4, 2).pointer(8, entries.data()).u32(16, kMost);
  const int error = drm(fd, 0x50, args);
  if (error != 0) return name_of(error);
  // By address: the driver lists them by the state of its page tables.
  const std::uint32_t count = std::min(args.get32(16), kMost);
  std::sort(entries.begin(), entries.begin() + count);
  std::string answer = "ok " + std::to_string(args.get32(16));
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto& [address, bytes, offset, flags] = entries[i];
    answer += " " + hex(address) + "+" + hex(bytes) + "@" + hex(offset) + " flags " + hex(flags);
  }
  return answer;
}

std::string listed(int fd) {
  constexpr std::uint32_t kMost = 32;
  std::array<std::array<std::uint64_t, 5>, kMost> entries{};
  Args args(16);
  args.pointer(0, entries.data()).u32(8, kMost);
  const int error = drm(fd, 0x59, args);
  if (error != 0) return name_of(error);
  std::string answer = "ok " + std::to_string(args.get32(8));
  for (std::uint32_t i = 0; i < std::min(args.get32(8), kMost); ++i) {
    const auto& [handle, bytes, domains, flags, pages] = entries[i];
    answer += ", handle " + std::to_string(handle & 0xffffffff) + (handle >> 32 != 0 ? " import" : "") + " " +
              std::to_string(bytes) + " domains " + hex(domains) + " flags " + hex(flags) + " align " +
              std::to_string(pages);
  }
  return answer;
}

int export_bo(int fd, std::uint32_t handle, unsigned flags) {
  Args args(12);
  args.u32(0, handle).u32(4, flags).u32(8, ~0U);
  const int error = drm(fd, 0x2d, args);
  return error == 0 ? static_cast<int>(args.get32(8)) : -error;
}

Bo import_bo(int fd, int dmabuf) {
  Args args(12);
  args.u32(8, static_cast<std::uint32_t>(dmabuf));
  const int error = drm(fd, 0x2e, args);
  return {error, error == 0 ? args.get32(0) : 0};
}

}  // namespace vamdgpu::questions
