// SPDX-License-Identifier: MIT
// Restore: in the main process, and in the task that is being restored.
#pragma once

#include <atomic>
#include <cstdint>

#include "lookalike/options.h"

namespace sluice::lookalike {

// What main and a task share. A futex word each.
struct RestoreShared {
  std::atomic<std::uint32_t> task{0};  // kTaskBusy..
  std::atomic<std::uint32_t> go{0};    // 1: the task may run
};
inline constexpr unsigned kMostTasks = 16;
inline constexpr std::uint32_t kTaskBusy = 0, kTaskRestored = 1, kTaskFailed = 2, kTaskFree = 3;

int restore(const Options& options);

// The task's side, in the forked child; single-threaded. Restores descriptors, memory and maps, says so,
// waits for go, becomes the subject. Never returns.
[[noreturn]] void restore_task(const Options& options, pid_t main, unsigned number, RestoreShared& shared);

// find_unused_fd_pid(): first free number above every descriptor that is still to be restored.
int first_free_task_fd();

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value);  // returns at once when it differs
bool futex_wait_a_moment(std::atomic<std::uint32_t>& word, std::uint32_t value);  // whether it differs
void futex_wake(std::atomic<std::uint32_t>& word);

}  // namespace sluice::lookalike
