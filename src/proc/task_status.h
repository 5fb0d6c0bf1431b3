// SPDX-License-Identifier: MIT
// A task as /proc shows it: name, state, process, parent and tracer. A snapshot; a function without state.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <string>

#include "base/result.h"

namespace sluice::proc {

struct TaskStatus {
  std::string name;  // at most 15 bytes; unprintable characters are '?'
  char state = 0;    // R, S, D, T (stopped), t (tracing stop), Z, X, I; 0 if unknown
  pid_t tgid = 0;    // its process
  pid_t parent = 0;
  pid_t tracer = 0;  // the thread that traces it; 0: none visible in the reader's pid namespace
};

// Reads `directory`/status, where `directory` is /proc/PID or /proc/PID/task/TID. Errors: no_such_task();
// those of open(2) and read(2). A task that cannot be examined may still exist.
Result<TaskStatus> read_task_status(const std::string& directory);
inline bool no_such_task(const Error& error) {
  return error.err == ENOENT || error.err == ESRCH;
}

}  // namespace sluice::proc
