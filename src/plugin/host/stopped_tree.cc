// SPDX-License-Identifier: MIT
#include "plugin/host/stopped_tree.h"

#include <signal.h>
#include <sys/ptrace.h>

#include <cerrno>
#include <string>

#include "proc/processes.h"

namespace sluice::plugin {

Result<StoppedTree> StoppedTree::find() {
  StoppedTree tree;
  SLUICE_TRY_ASSIGN(tree.tasks_, proc::traced_processes());
  tree.waiting_ = tree.tasks_;
  return tree;
}

// The options that CRIU has set are for earlier stops; it detaches next.
Result<void> StoppedTree::hold() const {
  return set_options(PTRACE_O_EXITKILL);
}

Result<void> StoppedTree::set_options(unsigned long options) const {
  for (const pid_t task : tasks_) {
    if (::ptrace(PTRACE_SETOPTIONS, task, nullptr, options) == 0) continue;
    const std::string who = "process " + std::to_string(task);
    if (errno == ESRCH)
      return Error{ESRCH, who + " died while it was restored; see its own lines above [SL-R06]"};
    return make_error(errno, "ptrace of " + who);
  }
  return {};
}

void StoppedTree::kill() const {
  for (const pid_t task : tasks_) (void)::kill(task, SIGKILL);
}

void StoppedTree::kill_traced(pid_t pid) {
  if (::ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_EXITKILL) == 0) (void)::kill(pid, SIGKILL);
}

// While the last ones were checked, the first may have died. CRIU detaches one after another, so it would
// have let others run before it notices.
Result<void> StoppedTree::ready(pid_t pid) {
  if (std::erase(waiting_, pid) == 0 || !waiting_.empty()) return {};
  SLUICE_TRY(hold());
  return set_options(0);
}

}  // namespace sluice::plugin
