// SPDX-License-Identifier: MIT
// Tells a restored task whether CRIU's main process still lives. Without it nobody resumes the task and
// nobody ends it: CRIU's own tasks wait for ever then. Ours must not. And tells main whether any task got a
// file of ours: a tree of which none did is no business of ours, whatever is wrong with this machine's GPUs.
// And has what all of them have seen of the GPUs' VRAM.
//
// A robust mutex in memory that main shares with all its tasks, which the thread that made it holds for as
// long as it lives: when it ends, however it ends, the kernel marks the mutex' word. No descriptor is needed,
// which the host would close, and no process id, which means something else in the tasks' pid namespaces.
#pragma once

#include <memory>

#include "base/result.h"
#include "plugin/contents/vram_watch.h"

namespace sluice::plugin {

class Lifeline {
 public:
  // In main's only thread, before any task is forked. Errors: ENOMEM.
  static Result<std::unique_ptr<Lifeline>> make();
  ~Lifeline();  // in the thread that made it
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  // Task. Error: ESRCH when main is dead.
  Result<void> check() const;

  // Task, before CRIU gets the file.
  void note_file();
  // Main: whether any task has, when all have all their files.
  bool has_files() const;

  // Main and tasks.
  VramWatch& vram();

 private:
  struct Held;
  explicit Lifeline(Held* held) : held_(held) {}
  Held* held_;
};

}  // namespace sluice::plugin
