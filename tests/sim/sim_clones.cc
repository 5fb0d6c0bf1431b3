// SPDX-License-Identifier: MIT
// Linked into a simulation, this puts SimContents::clone in place of FICLONERANGE.
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>

#include "sim/sim_contents.h"
#include "sim/sim_processes.h"

// The engine asks for nothing else.
extern "C" int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list rest;
  va_start(rest, request);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  if (request != FICLONERANGE || sluice::sim::SimProcesses::current() == nullptr)
    return static_cast<int>(::syscall(SYS_ioctl, fd, request, argument));
  const auto& range = *static_cast<const file_clone_range*>(argument);
  const int err = sluice::sim::contents().clone(static_cast<int>(range.src_fd), range.src_offset,
                                                range.src_length, fd, range.dest_offset);
  if (err == 0) return 0;
  errno = err;
  return -1;
}
