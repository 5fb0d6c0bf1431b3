// SPDX-License-Identifier: MIT
// Resumes the queues of a GPU process whose dump died after pausing them.
//
// A CRIU that is killed between PROCESS_INFO and UNPAUSE leaves the process alive and its queues evicted: the
// kernel undoes nothing when the tracer dies. Any tracer of the process can call UNPAUSE instead, through the
// process' own open /dev/kfd.
//
// This never undoes evictions by memory pressure, by a debugger, by suspend, or by a dump at work. The kernel
// counts evictions, and UNPAUSE undoes just one. It does so only while the flag "paused by CRIU" is set, and
// clears it: a second UNPAUSE is refused (EINVAL). A dump at work and a debugger trace the process, and a
// traced process is left alone.
//
// This cannot undo a double pause: up to Linux 7.2 every PROCESS_INFO evicts, flag or no flag. Two of them
// before an UNPAUSE leave the process evicted for ever, and no kernel call reveals or repairs that.
// CriuSession never does it, but upstream's plugin may.
//
// Sources: kfd_chardev.c (kfd_ioctl, criu_process_info, criu_unpause), kernel/ptrace.c, Linux 6.1 to 7.3.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace sluice::kfd {

enum class UnpauseStatus {
  Unpaused,   // its queues were paused and now run
  NotPaused,  // no dump has left its queues paused: nothing was changed
  // Refused, nothing was changed:
  NoKfd,           // this machine has none
  NoSuchProcess,   // or none visible
  NotLeadThread,   // the number is another thread's
  Ended,           // a zombie
  NotGpuProcess,   // holds no /dev/kfd
  Traced,          // by a dump or a debugger
  InheritedFiles,  // its /dev/kfd belongs to another process, which opened it
  // Failed:
  NotPermitted,  // to look, to trace, or to call UNPAUSE
  KernelError,   // UNPAUSE or the way to it
};

struct UnpauseReport {
  UnpauseStatus status = UnpauseStatus::KernelError;
  int err = 0;                   // positive errno for NotPermitted, KernelError; else 0
  std::string what;              // one sentence; empty for Unpaused and NotPaused
  std::string remedy;            // the remedy; may be empty
  std::vector<int> descriptors;  // the process' descriptors of /dev/kfd, as far as they were found
};

// UNPAUSE of process `pid` (its lead thread, in the caller's pid namespace). Briefly attaches to the lead
// thread by PTRACE_SEIZE, which does not stop it: works on a frozen or stopped process, too, and leaves it
// so. Detaches by ending a thread, which the caller's end waits for at the latest. Needs CAP_SYS_PTRACE over
// the process, and CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN in the initial user namespace. Reentrant. Throws
// std::system_error if no thread can be made.
UnpauseReport unpause_left_paused(pid_t pid);

}  // namespace sluice::kfd
