// SPDX-License-Identifier: MIT
// What a KFD process may have that the kernel's checkpoint leaves out without a word, as far as the kernel
// can be asked: secondary contexts (CREATE_PROCESS, KFD 1.19 and later), and debugging. Functions without
// state.
//
// Sources: kfd_process.c (kfd_create_process_sysfs), kfd_chardev.c (kfd_ioctl_set_debug_trap), kfd_debug.c.
#pragma once

#include <sys/types.h>

#include "base/result.h"
#include "kfd/device.h"

namespace sluice::kfd {

inline constexpr char kSysfsProcesses[] = "/sys/class/kfd/kfd/proc";

// Whether process `pid` has a context beside its first. The kernel lists them in sysfs, under process ids of
// its own: in a pid namespace below the initial one nothing is found. Errors: those of reading `sysfs`.
Result<bool> has_secondary_contexts(pid_t pid, const char* sysfs = kSysfsProcesses);

// Whether the KFD lets somebody debug process `pid` (DBG_TRAP, KFD 1.13 and later): a debugger, or the
// process itself. Asks, on the caller's own KFD file, for an event of the debugger's and clears none. Only
// the thread that traces the process is told, and the kernel's log gets a line ("not debug enabled") where
// the answer is no. Errors: EPERM (not traced), EIO (an answer that is none).
Result<bool> is_debugged(const KfdDevice& own, pid_t pid);

}  // namespace sluice::kfd
