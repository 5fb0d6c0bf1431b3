// SPDX-License-Identifier: MIT
// Tells a restored task whether CRIU's main process still lives. Without main nobody resumes or ends the
// task, and CRIU's own tasks then wait for ever; ours must not. It tells main whether any task got a file of
// ours: if none did, faults of this machine's GPUs do not matter to the tree. It also holds what all of them
// have seen of the GPUs' VRAM.
//
// A robust mutex in memory that main shares with all its tasks; the thread that made it holds it for life.
// When that thread ends, however it ends, the kernel marks the mutex' word. This needs no descriptor, which
// the host would close, and no pid, which differs between the tasks' pid namespaces.
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
  // Main: whether any task has a file of ours, once all have all their files.
  bool has_files() const;

  // Main and tasks.
  VramWatch& vram();

 private:
  struct Held;
  explicit Lifeline(Held* held) : held_(held) {}
  Held* held_;
};

}  // namespace sluice::plugin
