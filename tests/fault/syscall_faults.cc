// SPDX-License-Identifier: MIT
#include "fault/syscall_faults.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>

namespace sluice {
namespace {

struct Armed {
  bool on = false;
  std::uint64_t left = 0;
  int err = 0;
  const char* fired = nullptr;
};
thread_local Armed armed;

// Whether this call is the one; sets errno.
bool fails(const char* call) {
  if (!armed.on || armed.fired != nullptr || armed.left-- > 0) return false;
  armed.fired = call;
  errno = armed.err;
  return true;
}

template <class Function>
Function* next(const char* symbol) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, symbol));
}

}  // namespace

SyscallFault::SyscallFault(std::uint64_t at, int err) {
  armed = Armed{true, at, err, nullptr};
}
SyscallFault::~SyscallFault() {
  armed = Armed{};
}
const char* SyscallFault::fired() const {
  return armed.fired;
}

}  // namespace sluice

using sluice::fails;
using sluice::next;

// With 64-bit file offsets the C library's headers give these functions the names that end in 64.
#define SLUICE_TEST_NEXT64(name) next<decltype(::name)>(#name "64")
#define SLUICE_TEST_NEXT(name) next<decltype(::name)>(#name)

extern "C" {

int openat(int dir_fd, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  static auto* const real = SLUICE_TEST_NEXT64(openat);
  return fails("openat") ? -1 : real(dir_fd, path, flags, mode);
}

int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);
  va_end(arguments);
  static auto* const real = SLUICE_TEST_NEXT64(fcntl);
  return fails("fcntl") ? -1 : real(fd, command, argument);
}

int statx(int dir_fd, const char* __restrict path, int flags, unsigned int mask,
          struct statx* __restrict status) noexcept {
  static auto* const real = SLUICE_TEST_NEXT(statx);
  return fails("statx") ? -1 : real(dir_fd, path, flags, mask, status);
}

int fstat(int fd, struct stat* status) noexcept {
  static auto* const real = SLUICE_TEST_NEXT64(fstat);
  return fails("fstat") ? -1 : real(fd, status);
}

int fchmod(int fd, mode_t mode) noexcept {
  static auto* const real = SLUICE_TEST_NEXT(fchmod);
  return fails("fchmod") ? -1 : real(fd, mode);
}

ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
  static auto* const real = SLUICE_TEST_NEXT64(pread);
  return fails("pread") ? -1 : real(fd, data, bytes, offset);
}

int ftruncate(int fd, off_t bytes) noexcept {
  static auto* const real = SLUICE_TEST_NEXT64(ftruncate);
  return fails("ftruncate") ? -1 : real(fd, bytes);
}

int fsync(int fd) {
  static auto* const real = SLUICE_TEST_NEXT(fsync);
  return fails("fsync") ? -1 : real(fd);
}

// As the kernel does it: the descriptor is gone, and then the error is told.
int close(int fd) {
  static auto* const real = SLUICE_TEST_NEXT(close);
  const int result = real(fd);
  return fails("close") ? -1 : result;
}

int renameat(int old_dir, const char* old_path, int new_dir, const char* new_path) noexcept {
  static auto* const real = SLUICE_TEST_NEXT(renameat);
  return fails("renameat") ? -1 : real(old_dir, old_path, new_dir, new_path);
}

int unlinkat(int dir_fd, const char* path, int flags) noexcept {
  static auto* const real = SLUICE_TEST_NEXT(unlinkat);
  return fails("unlinkat") ? -1 : real(dir_fd, path, flags);
}

off_t lseek(int fd, off_t offset, int whence) noexcept {
  static auto* const real = SLUICE_TEST_NEXT64(lseek);
  return fails("lseek") ? -1 : real(fd, offset, whence);
}

void* mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  static auto* const real = SLUICE_TEST_NEXT64(mmap);
  return fails("mmap") ? MAP_FAILED : real(address, bytes, protection, flags, fd, offset);
}

int posix_fadvise(int fd, off_t offset, off_t bytes, int advice) noexcept {
  static auto* const real = SLUICE_TEST_NEXT64(posix_fadvise);
  return fails("posix_fadvise") ? errno : real(fd, offset, bytes, advice);
}

}  // extern "C"
