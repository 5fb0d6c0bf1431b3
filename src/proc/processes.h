// SPDX-License-Identifier: MIT
// Which traced process holds which open /dev/kfd.
//
// During a dump CRIU's main thread traces every task of the tree. The KFD files among their descriptors are
// found by device number in /proc/PID/fd (looked at by stat, never opened: opening /proc/PID/fd/N of a device
// makes a *new* open file, and with the KFD a KFD process of the opener), told apart by kcmp(2), and taken
// with pidfd_getfd(2). Two files of one process are two doors to one KFD process: PROCESS_INFO once.
// Functions without state; call them on the tracing thread, for only it sees itself in TracerPid.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace sluice::kfd {

// A descriptor of another process.
struct FileHolder {
  pid_t pid = 0;  // thread group leader, in the caller's pid namespace
  int fd = -1;

  bool operator==(const FileHolder&) const = default;
};

// One open file (struct file) and everyone who holds it, in order of pid and fd.
struct OpenFile {
  dev_t device = 0;
  std::vector<FileHolder> holders;
};

inline constexpr char kProcPath[] = "/proc";

// The processes whose lead thread is traced by the calling thread, ascending. Processes that end meanwhile
// are left out. Errors: those of reading `proc`.
Result<std::vector<pid_t>> traced_processes(const char* proc = kProcPath);

// The same for any tracer thread.
Result<std::vector<pid_t>> processes_traced_by(pid_t tracer, const char* proc = kProcPath);

// The pid of `pid` in its own, innermost pid namespace; nothing when the process is gone.
std::optional<pid_t> innermost_pid(pid_t pid, const char* proc = kProcPath);

// The children of process `ancestor`, and theirs. Processes that end meanwhile are left out. Errors: those of
// reading `proc`.
Result<std::vector<pid_t>> descendants(pid_t ancestor, const char* proc = kProcPath);

// Whether every thread of process `pid` has ended, though nobody may have waited for it: its memory and its
// files are gone.
bool has_ended(pid_t pid, const char* proc = kProcPath);

// Whether process `pid` is about to end: SIGKILL was sent to it, or it exits of its own accord. So is one
// that cannot be asked.
bool is_ending(pid_t pid, const char* proc = kProcPath);

// Descriptors of process `pid` that are the character device `device`, ascending. A process that has ended
// has none. Errors: EACCES (not allowed to look); stat(2)'s, of a file that by its name is a device.
Result<std::vector<int>> device_descriptors(pid_t pid, dev_t device, const char* proc = kProcPath);

// The same of several devices, in one walk.
struct DeviceDescriptor {
  int fd = -1;
  dev_t device = 0;
};
Result<std::vector<DeviceDescriptor>> device_descriptors(pid_t pid, std::span<const dev_t> devices,
                                                         const char* proc = kProcPath);

// A descriptor of a dma-buf.
struct DmaBufDescriptor {
  int fd = -1;
  ino_t inode = 0;  // tells the dma-buf
};
// Those of process `pid`. Needs and errors as above.
Result<std::vector<DmaBufDescriptor>> dmabuf_descriptors(pid_t pid, const char* proc = kProcPath);

// The process, in its own pid namespace, that CRIU restores a file in which `holders` have: the lowest pid.
// Nothing where the kernel does not tell.
struct RestoringProcess {
  pid_t pid = 0;                           // in the caller's namespace
  std::optional<std::uint32_t> innermost;  // in its own; nothing where the kernel does not tell
};
RestoringProcess restoring_process(const std::vector<pid_t>& holders);

// True when the two descriptors are one open file. Errors: ENOSYS (kernel without kcmp), EPERM, ESRCH, EBADF.
Result<bool> same_open_file(FileHolder a, FileHolder b);

// Every open file of one of `devices` that `pids` hold, told apart by kcmp.
Result<std::vector<OpenFile>> open_device_files(const std::vector<pid_t>& pids,
                                                std::span<const dev_t> devices, const char* proc = kProcPath);

// Who of the processes traced by this thread holds the open file behind `fd`, a descriptor of this process
// for `device`. Empty when none does.
Result<std::vector<FileHolder>> holders_of(int fd, dev_t device, const char* proc = kProcPath);

// The processes of holders that come in order of pid, each once.
std::vector<pid_t> processes_of(const std::vector<FileHolder>& holders);

// A descriptor of this process (close-on-exec) for the open file that `holder` names: the same struct file,
// not a new one. Errors: ENOSYS (Linux before 5.6), EPERM, ESRCH, EBADF.
Result<UniqueFd> take_descriptor(FileHolder holder);

// The same of a file that was listed, of its first holder. Who shares that one's table of descriptors, and
// stands still for nobody, may have put something else there since. Errors: ESTALE (another device, or
// none), else as above.
Result<UniqueFd> take_file(const OpenFile& listed);

}  // namespace sluice::kfd
