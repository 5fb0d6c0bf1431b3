// SPDX-License-Identifier: MIT
// The kernel as it is: system calls that no wrapper of this library sees. Within the library fstat(), open()
// and the like would come back to its own wrappers. Each returns what the libc function of that name returns,
// errno included. Async-signal-safe, usable before any constructor ran.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>

namespace vamdgpu::raw {

inline int openat(int directory, const char* path, int flags, mode_t mode) {
  return static_cast<int>(::syscall(SYS_openat, directory, path, flags, mode));
}

inline int fstatat(int directory, const char* path, struct stat* out, int flags) {
  return static_cast<int>(::syscall(SYS_newfstatat, directory, path, out, flags));
}

inline int fstat(int fd, struct stat* out) {
  return static_cast<int>(::syscall(SYS_fstat, fd, out));
}

inline int statx(int directory, const char* path, int flags, unsigned mask, struct statx* out) {
  return static_cast<int>(::syscall(SYS_statx, directory, path, flags, mask, out));
}

inline ssize_t readlinkat(int directory, const char* path, char* text, std::size_t size) {
  return ::syscall(SYS_readlinkat, directory, path, text, size);
}

inline int faccessat(int directory, const char* path, int mode) {
  return static_cast<int>(::syscall(SYS_faccessat, directory, path, mode));
}

inline ssize_t getxattr(const char* path, const char* name, void* value, std::size_t size) {
  return ::syscall(SYS_getxattr, path, name, value, size);
}

inline ssize_t lgetxattr(const char* path, const char* name, void* value, std::size_t size) {
  return ::syscall(SYS_lgetxattr, path, name, value, size);
}

inline ssize_t read(int fd, void* bytes, std::size_t size) {
  return ::syscall(SYS_read, fd, bytes, size);
}

inline int close(int fd) {
  return static_cast<int>(::syscall(SYS_close, fd));
}

inline void* mmap(void* address, std::size_t bytes, int protection, int flags, int fd, off_t offset) {
  return reinterpret_cast<void*>(::syscall(SYS_mmap, address, bytes, protection, flags, fd, offset));
}

inline int munmap(void* address, std::size_t bytes) {
  return static_cast<int>(::syscall(SYS_munmap, address, bytes));
}

inline int chdir(const char* path) {
  return static_cast<int>(::syscall(SYS_chdir, path));
}

// Bytes including the NUL, as the system call (not the libc function) counts them, or -1.
inline ssize_t getcwd(char* text, std::size_t size) {
  return ::syscall(SYS_getcwd, text, size);
}

}  // namespace vamdgpu::raw
