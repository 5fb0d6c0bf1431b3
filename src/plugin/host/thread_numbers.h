// SPDX-License-Identifier: MIT
// Numbers of threads that a restore makes for itself. CRIU gives each restored thread the number that it had
// (clone3 with set_tid), which does not move the place from which the kernel looks for the next free one: in
// a pid namespace that CRIU has just made, a lane of ours gets the lowest number that no task has yet, and
// when CRIU comes to the thread to which it belongs, that fails (EEXIST), and the restore with it. So while
// lanes are made, the kernel looks among high numbers, where few threads have theirs.
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

// Of the tasks of a restore, which have one pid namespace, and are forked from the process that has made this
// and share it; in each of them, one thread. Where one is killed in here, the others get none, two seconds
// later.
class ThreadNumbers {
 public:
  // Errors: those of mmap(2).
  static Result<std::unique_ptr<ThreadNumbers>> make();
  ~ThreadNumbers();
  ThreadNumbers(const ThreadNumbers&) = delete;
  ThreadNumbers& operator=(const ThreadNumbers&) = delete;

  // While it lives, in whichever of the processes, new threads and processes of the namespace get numbers in
  // the last quarter of those there are. The last one puts the kernel's place back where the first has found
  // it, unless one was killed in here. Outlived by the ThreadNumbers.
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

  // `proc`: a /proc of any pid namespace, a directory, borrowed for the call; the namespace is that of the
  // calling process. Errors: those of open(2), read(2) and write(2) there, EPERM without CAP_SYS_ADMIN and
  // CAP_CHECKPOINT_RESTORE over the namespace; EBADMSG; ETIMEDOUT when another was killed in here. Nothing is
  // raised then.
  Result<Raised> raise(int proc);

 private:
  explicit ThreadNumbers(Raised::Shared* shared) : shared_(shared) {}

  Raised::Shared* shared_;
};

}  // namespace sluice::plugin
