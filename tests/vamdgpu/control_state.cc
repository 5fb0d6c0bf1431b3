// SPDX-License-Identifier: MIT
// Makes the state of a machine that lives in a directory: pools, doorbell file, shared segment. See
// control.h.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <vector>

#include "control.h"
#include "front/raw.h"
#include "front/shared.h"

namespace vamdgpu {
namespace {

constexpr unsigned char kPoison = 0xa5;
constexpr std::uint64_t kDoorbellFileBytes = 65536ull * VAMDGPU_MAX_GPUS * 512;

int make_file(const StatePath& path, std::uint64_t bytes) {
  const int fd = raw::openat(AT_FDCWD, path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return -errno;
  if (::syscall(SYS_ftruncate, fd, bytes) != 0) {
    const int error = errno;
    raw::close(fd);
    return -error;
  }
  return fd;
}

// Asks for huge pages, where the kernel can give a file some (Linux 6.1, whatever the file system's own
// setting): the virtual engines copy twice as fast. Nobody depends on it, so nobody hears of a failure.
void want_huge_pages(int fd, std::uint64_t bytes) {
  constexpr std::uint64_t kHuge = std::uint64_t{2} << 20;
  constexpr int kMadvCollapse = 25;
  const std::uint64_t whole = bytes / kHuge * kHuge;
  if (whole == 0) return;
  void* const reserved =
      raw::mmap(nullptr, whole + kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return;
  const std::uint64_t begin = reinterpret_cast<std::uintptr_t>(reserved);
  auto* const aligned = reinterpret_cast<void*>((begin + kHuge - 1) / kHuge * kHuge);
  const char byte = 0;
  for (std::uint64_t at = 0; at < whole; at += kHuge) (void)!::syscall(SYS_pwrite64, fd, &byte, 1, at);
  if (raw::mmap(aligned, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED)
    ::syscall(SYS_madvise, aligned, whole, kMadvCollapse);
  raw::munmap(reserved, whole + kHuge);
}

int make_pool(const StatePath& path, std::uint64_t bytes) {
  const int fd = make_file(path, bytes);
  if (fd < 0) return fd;
  want_huge_pages(fd, bytes);
  const std::vector<unsigned char> block(std::size_t{1} << 20, kPoison);
  int error = 0;
  for (std::uint64_t at = 0; at < bytes && error == 0;) {
    const long n =
        ::syscall(SYS_pwrite64, fd, block.data(), std::min<std::uint64_t>(block.size(), bytes - at), at);
    if (n <= 0) error = n < 0 ? errno : ENOSPC;
    if (n > 0) at += static_cast<std::uint64_t>(n);
  }
  raw::close(fd);
  return -error;
}

// GPUs that the machine's "hidden" file keeps from its programs, as a device cgroup does: lines "render
// <minor>".
void hide_gpus(const char* directory, vam_model* model) {
  std::FILE* file = std::fopen(StatePath(directory, "hidden", UINT64_MAX).c_str(), "re");
  if (file == nullptr) return;
  char line[64];
  unsigned minor = 0;
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::sscanf(line, "render %u", &minor) != 1) continue;
    for (std::uint32_t gpu = 0; gpu < model->num_gpus; ++gpu) {
      if (model->gpu[gpu].config.render_minor == minor) model->gpu[gpu].hidden = 1;
    }
  }
  std::fclose(file);
}

int make_segment(const char* directory, const vamdgpu_machine_config& config) {
  const vam_limits limits = machine_limits();
  const std::uint64_t model_offset = (sizeof(Shared) + 4095) & ~std::uint64_t{4095};
  const std::uint64_t bytes = model_offset + vam_model_bytes(&limits);
  const int fd = make_file(StatePath(directory, "state", UINT64_MAX), bytes);
  if (fd < 0) return fd;
  void* const memory = raw::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  const int error = errno;
  raw::close(fd);
  if (memory == MAP_FAILED) return -error;
  auto* shared = static_cast<Shared*>(memory);
  shared->bytes = bytes;
  shared->model_offset = model_offset;
  vam_debug_init(&shared->debug, &config);
  const int result = vam_model_init(shared->model(), &limits, &config);
  if (result == 0) hide_gpus(directory, shared->model());
  shared->magic = Shared::layout();
  raw::munmap(memory, bytes);
  return result;
}

}  // namespace

int create_state(const char* directory, const vamdgpu_machine_config& config) {
  for (const char* sub : {"files", "bufs", "fences", "syncobjs"}) {
    if (::syscall(SYS_mkdirat, AT_FDCWD, StatePath(directory, sub, UINT64_MAX).c_str(), 0700) != 0)
      return -errno;
  }
  const int doorbells = make_file(StatePath(directory, "doorbells", UINT64_MAX), kDoorbellFileBytes);
  if (doorbells < 0) return doorbells;
  raw::close(doorbells);
  for (std::uint32_t gpu = 0; gpu < config.num_gpus && gpu < VAMDGPU_MAX_GPUS; ++gpu) {
    int error = make_pool(pool_path(directory, VAM_POOL_VRAM, gpu), config.gpus[gpu].vram_bytes);
    if (error == 0) error = make_pool(pool_path(directory, VAM_POOL_GTT, gpu), config.gpus[gpu].gtt_bytes);
    if (error != 0) return error;
  }
  return make_segment(directory, config);
}

}  // namespace vamdgpu
