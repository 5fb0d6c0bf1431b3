// SPDX-License-Identifier: MIT
// A process and its descendants, stopped for a moment and traced by this thread. Only to a tracer the kernel
// shows what they have in their GPUs.
//
// PTRACE_SEIZE, and a stop without a signal: processes stopped by a signal stay so afterwards, and blocked
// system calls continue. If this program dies, all run on. Thread-bound.
#pragma once

#include <sys/types.h>

#include <vector>

#include "base/result.h"

namespace sluice::cli {

class HeldTree {
 public:
  HeldTree() = default;
  ~HeldTree() { release(); }
  HeldTree(const HeldTree&) = delete;
  HeldTree& operator=(const HeldTree&) = delete;

  // Stops every thread of `root` and of its descendants. Errors: ESRCH if `root` is gone; EPERM for one that
  // may not be traced, or is traced already; ETIMEDOUT for one that does not stop. Call release() then.
  Result<void> hold(pid_t root);
  void release();

  // The processes that are held.
  const std::vector<pid_t>& processes() const { return processes_; }

 private:
  struct Thread {
    pid_t id = 0;
    int signal = 0;  // about to be delivered to it
  };
  // Whether it found any that was not held.
  Result<bool> hold_new_threads(pid_t process);
  Result<void> hold_thread(pid_t process, pid_t thread);
  Result<bool> wait_for_stop(Thread& thread) const;
  bool holds(pid_t thread) const;

  std::vector<pid_t> processes_;
  std::vector<Thread> threads_;
};

}  // namespace sluice::cli
