// SPDX-License-Identifier: MIT
// Parts of a KFD process that the kernel's checkpoint silently leaves out, as far as the kernel shows them.
// These are secondary contexts (CREATE_PROCESS, KFD 1.19 and later), and debugging. Functions without state.
//
// Sources: kfd_process.c (kfd_create_process_sysfs), kfd_chardev.c (kfd_ioctl_set_debug_trap), kfd_debug.c.
#pragma once

#include <sys/types.h>

#include "base/result.h"
#include "kfd/device.h"

namespace sluice::kfd {

inline constexpr char kSysfsProcesses[] = "/sys/class/kfd/kfd/proc";

// Whether process `pid` has a context beside its first. The kernel lists them in sysfs, under pids of the
// initial namespace: below it nothing is found. Errors: those of reading `sysfs`.
Result<bool> has_secondary_contexts(pid_t pid, const char* sysfs = kSysfsProcesses);

// Whether the KFD lets someone debug process `pid` (DBG_TRAP, KFD 1.13 and later): a debugger, or the process
// itself. Queries a debugger's event on the caller's own KFD file and clears none. The kernel answers only
// the thread that traces the process, and logs a line ("not debug enabled") if the answer is no. Errors:
// EPERM (not traced), EIO (an unexpected answer).
Result<bool> is_debugged(const KfdDevice& own, pid_t pid);

}  // namespace sluice::kfd
