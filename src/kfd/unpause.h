// SPDX-License-Identifier: MIT
// Makes the queues of a GPU process run again that a dump paused and then died over.
//
// A CRIU that is killed between PROCESS_INFO and UNPAUSE leaves the process alive and its queues evicted: the
// kernel undoes nothing when the tracer dies. Anybody who traces the process can call UNPAUSE in its stead,
// through the process' own open /dev/kfd.
//
// What this never undoes: evictions by memory pressure, by a debugger, by suspend, or by a dump that is still
// at work. The kernel counts evictions and gives UNPAUSE just one of them back, and only while its flag
// "paused by CRIU" is set, which that same UNPAUSE clears: a second one is refused (EINVAL). A dump that is
// at work, and a debugger, trace the process, and whoever is traced is left alone.
//
// What it cannot undo: up to Linux 7.2 every PROCESS_INFO evicts, flag or no flag. Two of them before an
// UNPAUSE (which CriuSession never does, but upstream's plugin may) leave the process evicted for ever; no
// call of the kernel tells or mends that.
//
// Sources: kfd_chardev.c (kfd_ioctl, criu_process_info, criu_unpause), kernel/ptrace.c, Linux 6.1 to 7.3.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace sluice::kfd {

enum class UnpauseStatus {
  Unpaused,   // its queues were paused and are not any more
  NotPaused,  // no dump has left its queues paused: nothing was done
  // Refused, nothing was changed:
  NoKfd,           // this machine has none
  NoSuchProcess,   // or none that may be seen
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
  int err = 0;                   // positive errno behind NotPermitted, KernelError; else 0
  std::string what;              // one sentence; empty for Unpaused and NotPaused
  std::string remedy;            // what the user can do; may be empty
  std::vector<int> descriptors;  // of the process, that are /dev/kfd, as far as they were found
};

// UNPAUSE of process `pid` (its lead thread, in the caller's pid namespace). Attaches to the lead thread for
// the moment by PTRACE_SEIZE, which does not stop it: works on a frozen or stopped process, too, and leaves
// it so. Detached by a thread's end, which the caller's own end waits for at the latest. Needs CAP_SYS_PTRACE
// over the process, and CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN in the initial user namespace. Reentrant.
// Throws std::system_error when no thread can be made.
UnpauseReport unpause_left_paused(pid_t pid);

}  // namespace sluice::kfd
