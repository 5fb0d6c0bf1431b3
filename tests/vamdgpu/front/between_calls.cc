// SPDX-License-Identifier: MIT
// ptrace and kill, wrapped: a thread must not be stopped or killed in the middle of a virtual driver call or
// of an engine's bookkeeping, where it holds the machine's lock: stopped, it would keep everybody out, its
// tracer included; killed, it would leave half of a change. A real driver's ioctl is never cut in two either.
// So both are asked for with the lock held, and the lock kept until the thread has stopped, or the process
// ended: outside.
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>

#include "local.h"
#include "next.h"
#include "raw.h"

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

long kill_outside(const Local& machine, pid_t pid) {
  Locked locked(machine.shared->lock);
  const auto process = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  const long result = ::syscall(SYS_kill, pid, SIGKILL);
  const int error = errno;
  if (process >= 0) {
    pollfd ended = {process, POLLIN, 0};  // readable when its last thread has ended
    const timespec patience = {kPatienceNs / 1'000'000'000, 0};
    if (result == 0) ::syscall(SYS_ppoll, &ended, 1, &patience, nullptr, 0);
    raw::close(process);
  }
  errno = error;
  return result;
}

}  // namespace
}  // namespace vamdgpu

extern "C" __attribute__((visibility("default"))) long wrap_ptrace(int request, ...) __asm__("ptrace");
extern "C" __attribute__((visibility("default"))) int wrap_kill(pid_t pid, int signal) __asm__("kill");

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

int wrap_kill(pid_t pid, int signal) {
  const vamdgpu::Local* machine = nullptr;
  if (signal == SIGKILL && pid > 0 && pid != ::getpid()) machine = vamdgpu::local();
  return static_cast<int>(machine != nullptr ? vamdgpu::kill_outside(*machine, pid)
                                             : ::syscall(SYS_kill, pid, signal));
}
