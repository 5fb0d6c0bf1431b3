// SPDX-License-Identifier: MIT
// Makes the n-th system call of the calling thread fail, among those the engine makes through the C library:
// openat, statx, fstat, fchmod, fcntl, pread, ftruncate, fsync, close, renameat, unlinkat, lseek, mmap,
// posix_fadvise. Linking syscall_faults.cc interposes them; without an armed SyscallFault they only forward.
#pragma once

#include <cstdint>

namespace sluice {

// Armed while it lives. One at a time per thread.
class SyscallFault {
 public:
  SyscallFault(std::uint64_t at, int err);
  ~SyscallFault();
  SyscallFault(const SyscallFault&) = delete;
  SyscallFault& operator=(const SyscallFault&) = delete;

  // Which call failed; null: none was reached.
  const char* fired() const;
};

}  // namespace sluice
