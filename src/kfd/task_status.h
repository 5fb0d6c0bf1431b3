// SPDX-License-Identifier: MIT
// What /proc says of a task: its name, state, process, parent and tracer. A snapshot; a function without
// state.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace sluice::kfd {

struct TaskStatus {
  std::string name;  // at most 15 bytes, fit to be shown: what cannot be printed has become '?'
  char state = 0;    // R, S, D, T (stopped), t (tracing stop), Z, X, I; 0 when not said
  pid_t tgid = 0;    // its process
  pid_t parent = 0;
  pid_t tracer = 0;  // the thread that traces it; 0: none that the reader's pid namespace shows
};

// Reads `directory`/status, where `directory` is /proc/PID or /proc/PID/task/TID. Nothing when there is no
// such task or it may not be looked at.
std::optional<TaskStatus> read_task_status(const std::string& directory);

}  // namespace sluice::kfd
