// SPDX-License-Identifier: MIT
#include "cli/predump/held_tree.h"

#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>

#include "proc/directory.h"
#include "proc/processes.h"
#include "proc/task_status.h"

namespace sluice::cli {
namespace {

using Clock = std::chrono::steady_clock;

// A thread in an uninterruptible system call takes a while.
constexpr auto kPatience = std::chrono::seconds(2);
constexpr timespec kBetweenLooks{0, 200'000};  // 200 us

std::string task_directory(pid_t process) {
  return std::string(proc::kProcPath) + "/" + std::to_string(process) + "/task";
}

std::string describe(pid_t process, pid_t thread) {
  return "process " + std::to_string(process) +
         (thread == process ? std::string() : ", thread " + std::to_string(thread));
}

}  // namespace

bool HeldTree::holds(pid_t thread) const {
  return std::any_of(threads_.begin(), threads_.end(), [=](const Thread& one) { return one.id == thread; });
}

// Until a whole round finds nothing new: running threads may create more.
Result<void> HeldTree::hold(pid_t root) {
  for (bool any_new = true; any_new;) {
    any_new = false;
    SLUICE_TRY_ASSIGN(std::vector<pid_t> processes, proc::descendants(root));
    processes.insert(processes.begin(), root);
    for (const pid_t process : processes) {
      SLUICE_TRY_ASSIGN(const bool more, hold_new_threads(process));
      any_new = any_new || more;
    }
  }
  if (holds(root)) return {};
  return make_error(ESRCH, "there is no process " + std::to_string(root) + " that runs");
}

Result<bool> HeldTree::hold_new_threads(pid_t process) {
  bool any_new = false;
  const auto threads = proc::numbered_entries(task_directory(process));
  if (!threads) return false;  // it has ended
  for (const int thread : *threads) {
    if (holds(thread)) continue;
    SLUICE_TRY(hold_thread(process, thread));
    any_new = any_new || holds(thread);
  }
  const bool known = std::find(processes_.begin(), processes_.end(), process) != processes_.end();
  if (!known && holds(process)) processes_.push_back(process);
  return any_new;
}

// A thread that ends meanwhile is not held.
Result<void> HeldTree::hold_thread(pid_t process, pid_t thread) {
  if (::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0) {
    const int err = errno;
    const auto status = proc::read_task_status(task_directory(process) + "/" + std::to_string(thread));
    if (err == ESRCH || !status || status->state == 'Z' || status->state == 'X') return {};
    if (status->tracer != 0)
      return make_error(EPERM, describe(process, thread) + " is traced by process " +
                                   std::to_string(status->tracer) + ", a dump or a debugger");
    return make_error(err, "may not trace " + describe(process, thread));
  }
  threads_.push_back({thread, 0});
  (void)::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr);
  const auto stopped = wait_for_stop(threads_.back());
  if (!stopped) return explain(describe(process, thread), stopped.error());
  if (!*stopped) threads_.pop_back();
  return {};
}

// False: it has ended.
Result<bool> HeldTree::wait_for_stop(Thread& thread) const {
  const auto end = Clock::now() + kPatience;
  for (;;) {
    int status = 0;
    const pid_t came = ::waitpid(thread.id, &status, __WALL | WNOHANG);
    if (came < 0 && errno != EINTR) return false;
    if (came == thread.id && !WIFSTOPPED(status)) return false;
    if (came == thread.id) {
      const bool by_us = status >> 16 == PTRACE_EVENT_STOP;
      if (!by_us) thread.signal = WSTOPSIG(status);
      return true;
    }
    if (Clock::now() >= end)
      return make_error(ETIMEDOUT, "it does not stop: its cgroup is frozen, or a driver holds it");
    (void)::nanosleep(&kBetweenLooks, nullptr);
  }
}

void HeldTree::release() {
  for (const Thread& thread : threads_)
    (void)::ptrace(PTRACE_DETACH, thread.id, nullptr, static_cast<std::intptr_t>(thread.signal));
  threads_.clear();
  processes_.clear();
}

}  // namespace sluice::cli
