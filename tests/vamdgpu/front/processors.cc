// SPDX-License-Identifier: MIT
// How many processors programs on the machine are told of: $VAMDGPU_CPUS, else the real ones. They run on the
// real ones all the same.
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "front.h"

extern "C" __attribute__((visibility("default"))) int wrap_sched_getaffinity(
    pid_t pid, std::size_t bytes, cpu_set_t* set) __asm__("sched_getaffinity");

int wrap_sched_getaffinity(pid_t pid, std::size_t bytes, cpu_set_t* set) {
  std::memset(set, 0, bytes);
  if (const char* const told = ::getenv("VAMDGPU_CPUS"); told != nullptr && vamdgpu::state_dir() != nullptr) {
    const std::size_t count = std::strtoul(told, nullptr, 10);
    for (std::size_t cpu = 0; cpu < std::min(count, bytes * CHAR_BIT); ++cpu) CPU_SET_S(cpu, bytes, set);
    return 0;
  }
  return ::syscall(SYS_sched_getaffinity, pid, std::min<std::size_t>(bytes, INT_MAX), set) < 0 ? -1 : 0;
}
