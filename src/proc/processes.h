// SPDX-License-Identifier: MIT
// Which traced process holds which open file of a device.
//
// During a dump CRIU's main thread traces every task of the tree. Files of a device among their descriptors
// are found by its number in /proc/PID/fd. They are examined by stat and never opened, because opening
// /proc/PID/fd/N of a device makes a *new* open file. Open files are compared by kcmp(2) and taken by
// pidfd_getfd(2). Functions without state; call them on the tracing thread, because only that thread finds
// itself in TracerPid.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace sluice::proc {

// A descriptor of another process.
struct FileHolder {
  pid_t pid = 0;  // thread group leader, in the caller's pid namespace
  int fd = -1;

  bool operator==(const FileHolder&) const = default;
};

// One open file (struct file) and all its holders, ordered by pid and fd.
struct OpenFile {
  dev_t device = 0;
  std::vector<FileHolder> holders;
};

inline constexpr char kProcPath[] = "/proc";

// The processes whose lead thread the calling thread traces, ascending. Processes that end meanwhile are left
// out. Errors: those of reading `proc`.
Result<std::vector<pid_t>> traced_processes(const char* proc = kProcPath);

// The same for any tracer thread.
Result<std::vector<pid_t>> processes_traced_by(pid_t tracer, const char* proc = kProcPath);

// The number of `pid` in its innermost pid namespace; nothing if the process is gone.
std::optional<pid_t> innermost_pid(pid_t pid, const char* proc = kProcPath);

// All descendants of process `ancestor`. Processes that end meanwhile are left out. Errors: those of reading
// `proc`.
Result<std::vector<pid_t>> descendants(pid_t ancestor, const char* proc = kProcPath);

// Whether every thread of process `pid` has ended, even if no parent has waited for it: its memory and files
// are gone.
bool has_ended(pid_t pid, const char* proc = kProcPath);

// Whether process `pid` is about to end: it was sent SIGKILL or exits by itself. True if it cannot be
// examined.
bool is_ending(pid_t pid, const char* proc = kProcPath);

// Descriptors of process `pid` that are the character device `device`, ascending. A process that has ended
// has none. Errors: EACCES (not allowed to look); stat(2)'s for a file named like a device.
Result<std::vector<int>> device_descriptors(pid_t pid, dev_t device, const char* proc = kProcPath);

// The same for several devices, in one walk.
struct DeviceDescriptor {
  int fd = -1;
  dev_t device = 0;
};
Result<std::vector<DeviceDescriptor>> device_descriptors(pid_t pid, std::span<const dev_t> devices,
                                                         const char* proc = kProcPath);

// A descriptor of a dma-buf.
struct DmaBufDescriptor {
  int fd = -1;
  ino_t inode = 0;  // identifies the dma-buf
};
// The dma-bufs of process `pid`. Needs and errors as above.
Result<std::vector<DmaBufDescriptor>> dmabuf_descriptors(pid_t pid, const char* proc = kProcPath);

// The process in which CRIU restores a file of `holders`: the one with the lowest pid in its own pid
// namespace. Nothing where the kernel does not tell.
struct RestoringProcess {
  pid_t pid = 0;                           // in the caller's namespace
  std::optional<std::uint32_t> innermost;  // in its own namespace; nothing where the kernel does not tell
};
RestoringProcess restoring_process(const std::vector<pid_t>& holders);

// True when the two descriptors are one open file. Errors: ENOSYS (kernel without kcmp), EPERM, ESRCH, EBADF.
Result<bool> same_open_file(FileHolder a, FileHolder b);

// Every open file of one of `devices` that `pids` hold, told apart by kcmp.
Result<std::vector<OpenFile>> open_device_files(const std::vector<pid_t>& pids,
                                                std::span<const dev_t> devices, const char* proc = kProcPath);

// The processes of holders ordered by pid, each once.
std::vector<pid_t> processes_of(const std::vector<FileHolder>& holders);

// A descriptor of this process (close-on-exec) for the open file that `holder` names: the same struct file,
// not a new one. Errors: ENOSYS (Linux before 5.6), EPERM, ESRCH, EBADF.
Result<UniqueFd> take_descriptor(FileHolder holder);

// The same for the first holder of a listed file. A process that shares that holder's descriptor table and is
// not stopped may have replaced the descriptor since. Errors: ESTALE (another device, or none), else as
// above.
Result<UniqueFd> take_file(const OpenFile& listed);

}  // namespace sluice::proc
