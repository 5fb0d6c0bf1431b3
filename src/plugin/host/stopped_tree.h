// SPDX-License-Identifier: MIT
// The tasks of the tree in RESUME_DEVICES_LATE. They stand still under CRIU's main thread, which traces them,
// one step before they run. Either all run on or none does: not when one of them is dead, and not when CRIU
// is, of which the kernel would let them go.
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

  // From here on the kernel kills them when this thread ends. Called again: whether all of them still stand.
  // Error: ESRCH when a task is dead, by its pid.
  Result<void> hold() const;

  // Ends all of them.
  void kill() const;

  // Ends process `pid` if this thread traces it, and it stands still: nobody else can have that number then.
  static void kill_traced(pid_t pid);

  // The task may run on. With the last one all are let go: whatever becomes of CRIU now, they are whole.
  // Error: as of hold(), when one has died meanwhile.
  Result<void> ready(pid_t pid);

 private:
  Result<void> set_options(unsigned long options) const;
  std::vector<pid_t> tasks_;
  std::vector<pid_t> waiting_;  // not ready yet
};

}  // namespace sluice::plugin
