// SPDX-License-Identifier: MIT
// What /proc says of a task: its name, state, process, parent and tracer. A snapshot; a function without
// state.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <string>

#include "base/result.h"

namespace sluice::kfd {

struct TaskStatus {
  std::string name;  // at most 15 bytes, fit to be shown: what cannot be printed has become '?'
  char state = 0;    // R, S, D, T (stopped), t (tracing stop), Z, X, I; 0 when not said
  pid_t tgid = 0;    // its process
  pid_t parent = 0;
  pid_t tracer = 0;  // the thread that traces it; 0: none that the reader's pid namespace shows
};

// Reads `directory`/status, where `directory` is /proc/PID or /proc/PID/task/TID. Errors: no_such_task();
// those of open(2) and read(2). That a task cannot be asked does not mean that it is gone.
Result<TaskStatus> read_task_status(const std::string& directory);
inline bool no_such_task(const Error& error) {
  return error.err == ENOENT || error.err == ESRCH;
}

}  // namespace sluice::kfd
