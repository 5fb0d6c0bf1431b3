// SPDX-License-Identifier: MIT
// Numbers of threads that a restore makes for itself. CRIU gives each restored thread its old number (clone3
// with set_tid). That does not move the position from which the kernel searches for a free one. In a new pid
// namespace a lane of ours therefore gets the lowest free number. When CRIU later needs it for the thread
// that had it, clone3 fails (EEXIST), and the restore with it. So while lanes are made, the kernel searches
// among high numbers, which few threads have.
//
// Source: Linux kernel/pid.c (alloc_pid) and kernel/pid_namespace.c (pid_ns_ctl_handler), seen on 6.12 and
// 6.18; CRIU's criu/pie/restorer.c.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "base/result.h"
#include "base/unique_fd.h"

namespace sluice::plugin {

// Shared by the tasks of a restore, which are in one pid namespace and are forked from the process that made
// this; one thread in each. If a task is killed in here, the others get ETIMEDOUT after two seconds.
class ThreadNumbers {
 public:
  // Errors: those of mmap(2).
  static Result<std::unique_ptr<ThreadNumbers>> make();
  ~ThreadNumbers();
  ThreadNumbers(const ThreadNumbers&) = delete;
  ThreadNumbers& operator=(const ThreadNumbers&) = delete;

  // While any Raised exists, in any of the processes, new threads and processes of the namespace get numbers
  // in the last quarter of the range. The last one restores the kernel's position, unless a task was killed
  // in here. Outlived by the ThreadNumbers.
  class Raised {
   public:
    Raised(Raised&& other) noexcept
        : shared_(std::exchange(other.shared_, nullptr)), place_(std::move(other.place_)) {}
    Raised& operator=(Raised&&) = delete;
    ~Raised();

   private:
    friend class ThreadNumbers;
    struct Shared;
    Raised(Shared* shared, UniqueFd place) : shared_(shared), place_(std::move(place)) {}
    Shared* shared_;
    UniqueFd place_;  // sys/kernel/ns_last_pid
  };

  // `proc`: a /proc of any pid namespace, a directory, borrowed for the call; the namespace is the calling
  // process'. Errors: those of open(2), read(2) and write(2) there, EPERM without CAP_SYS_ADMIN or
  // CAP_CHECKPOINT_RESTORE over the namespace; EBADMSG; ETIMEDOUT if another task was killed in here. On
  // error nothing is raised.
  Result<Raised> raise(int proc);

 private:
  explicit ThreadNumbers(Raised::Shared* shared) : shared_(shared) {}

  Raised::Shared* shared_;
};

}  // namespace sluice::plugin
