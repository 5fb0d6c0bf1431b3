// SPDX-License-Identifier: MIT
// The tasks of the tree in RESUME_DEVICES_LATE: stopped, traced by CRIU's main thread, about to run. Either
// all run on or none does: none if one of them is dead, or if CRIU is dead, after which the kernel would
// detach them.
//
// Thread-bound: to the tracer.
#pragma once

#include <sys/types.h>

#include <vector>

#include "base/result.h"

namespace sluice::plugin {

class StoppedTree {
 public:
  // Finds the tasks. Errors: those of reading /proc.
  static Result<StoppedTree> find();

  // From now on the kernel kills them when this thread ends. Further calls check that all are still stopped.
  // Error: ESRCH, with the pid, when a task is dead.
  Result<void> hold() const;

  // Kills all of them.
  void kill() const;

  // Kills process `pid` if this thread traces it and it is stopped: then no other process can have that
  // number.
  static void kill_traced(pid_t pid);

  // The task may run on. With the last call all are released, because from then on they are complete whatever
  // happens to CRIU. Error: as hold(), if one has died meanwhile.
  Result<void> ready(pid_t pid);

 private:
  Result<void> set_options(unsigned long options) const;
  std::vector<pid_t> tasks_;
  std::vector<pid_t> waiting_;  // not ready yet
};

}  // namespace sluice::plugin
