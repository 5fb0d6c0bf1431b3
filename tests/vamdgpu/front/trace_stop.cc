// SPDX-License-Identifier: MIT
// ptrace, wrapped: a tracer must not stop a thread in the middle of a virtual driver call, where it holds the
// machine's lock and would keep everybody out, its tracer included. A real driver's ioctl is never cut in two
// either. So a stop is asked for with the lock held, and the lock kept until the thread has stopped: outside.
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>

#include "local.h"
#include "next.h"

namespace vamdgpu {
namespace {

constexpr std::uint64_t kPatienceNs = 1'000'000'000;

Next<long(int, pid_t, void*, void*)> g_ptrace("ptrace");

long stop_outside(const Local& machine, int request, pid_t pid, void* address, void* data) {
  Locked locked(machine.shared->lock);
  const long result = ::syscall(SYS_ptrace, request, pid, address, data);
  const int error = errno;
  const std::uint64_t until = monotonic_ns() + kPatienceNs;
  while (result == 0 && monotonic_ns() < until) {
    const char state = thread_state(pid);
    if (state == 't' || state == 'Z' || state == 'X' || state == 0) break;
    ::sched_yield();
  }
  errno = error;
  return result;
}

}  // namespace
}  // namespace vamdgpu

extern "C" __attribute__((visibility("default"))) long wrap_ptrace(int request, ...) __asm__("ptrace");

long wrap_ptrace(int request, ...) {
  va_list list;
  va_start(list, request);
  const pid_t pid = va_arg(list, pid_t);
  void* address = va_arg(list, void*);
  void* data = va_arg(list, void*);
  va_end(list);
  const vamdgpu::Local* machine = nullptr;
  if (request == PTRACE_INTERRUPT || request == PTRACE_ATTACH) machine = vamdgpu::local();
  if (machine != nullptr) return vamdgpu::stop_outside(*machine, request, pid, address, data);
  return vamdgpu::g_ptrace.get()(request, pid, address, data);
}
