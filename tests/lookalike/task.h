// SPDX-License-Identifier: MIT
// Another process, as the host sees it: seized by ptrace, its descriptors, its threads. Thread-bound: ptrace
// belongs to the thread that attached, which must be the host's main one. Device files are told from the
// look-alike's own through the ordinary calls (fstat, readlink), which the virtual amdgpu answers like a
// kernel.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace sluice::lookalike {

// Seizes every thread of a process and stops it; lets it go again.
class Seized {
 public:
  Seized() = default;
  ~Seized() { (void)resume(); }
  Seized(const Seized&) = delete;
  Seized& operator=(const Seized&) = delete;

  // 0, or -1 logged: then nothing is seized.
  int seize(pid_t pid);
  // Detaches: the process runs on. Nothing when not seized. False when it has been killed.
  bool resume();
  // SIGKILL, and waits until the process is gone (a zombie of its parent).
  void kill();

 private:
  pid_t pid_ = 0;
  std::vector<pid_t> threads_;
};

// Numbers in /proc/<pid>/<what> ("fd", "task"), ascending. "self" for pid 0.
std::vector<int> proc_numbers(pid_t pid, const char* what);

// Whether no thread of process `pid` runs any more.
bool has_ended(pid_t pid);

// Whether a signal has stopped it.
bool is_stopped(pid_t pid);

// What an open descriptor of the calling process is.
enum class FileKind {
  Plain,   // standard streams, pipes, regular files, the look-alike's own
  Device,  // a character device that CRIU hands to plugins
  DmaBuf,
  Fifo,  // with a name
};
FileKind kind_of(int fd);
// Text of /proc/self/fd/<fd>.
std::string link_of(int fd);
// Belongs to the virtual amdgpu's front library in this process.
bool front_fd(int fd);

// A copy of descriptor `number` of process `pid` (pidfd_getfd), without CLOEXEC as CRIU's is.
UniqueFd fd_of(int pidfd, int number);
// Whether both are one struct file.
bool same_file(int a, int b);
// FD_CLOEXEC of another process' descriptor, from /proc/PID/fdinfo.
bool cloexec_of(pid_t pid, int number);

// Name of a thread of the calling process.
std::string thread_name(int thread);
// Threads of the calling process other than the main one, the virtual amdgpu's engines (names "vamdgpu...")
// and those that have ended but for what the kernel has left to do.
std::vector<int> extra_threads();
// Maps of the calling process that a plugin might have left, as /proc/self/maps has them: shared ones (rings,
// image files, what tasks share) and those that a fork does not copy (staging memory). None of the tests'
// own.
std::set<std::string> maps_of_note();

}  // namespace sluice::lookalike
