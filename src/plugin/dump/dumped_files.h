// SPDX-License-Identifier: MIT
// All open files of one dump: those of /dev/kfd, and those of render nodes, of which the KFD processes tell.
//
// Main thread only.
#pragma once

#include <sys/types.h>

#include <memory>
#include <utility>
#include <vector>

#include "kfd/criu_ops.h"
#include "plugin/dump/kfd_file.h"
#include "plugin/dump/render_dump.h"
#include "plugin/dump/target_tree.h"

namespace sluice::plugin {

class DumpedFiles {
 public:
  // Borrowed.
  DumpedFiles(kfd::UnpauseGuard& sessions, DumpRun& run) : sessions_(sessions), run_(run) {}

  bool empty() const { return kfd_.empty() && render_.empty(); }
  // In the order in which they are begun: those of /dev/kfd first.
  std::vector<DumpedFile*> all() const;
  // The same open file as `fd`, where CRIU has not asked for it yet; else null.
  Result<DumpedFile*> find(int fd, kfd::FileKind kind) const;

  // Lists what a render file has; ends an older dump's pause of a file of /dev/kfd. All are added before the
  // first is begun: what an older dump has left paused must run again first, and whoever maps a render node
  // may map any file's BOs.
  Result<void> add(TakenFile taken);
  Result<void> begin_all();
  // Memory that no other file has, as a file of its own; begins it.
  Result<DumpedFile*> add_memory(std::unique_ptr<RenderDump> memory);
  // When it is settled which BOs are shared: what the KFD processes tell of render files.
  Result<void> settle();
  // One that was not seen in advance: all of the above. Errors: EINVAL for a render file that has BOs.
  Result<DumpedFile*> begin_late(TakenFile taken);

  // Before anything is written. Errors: RenderDump::look_at_vram()'s.
  Result<void> look_at_vram() const;
  // Joins and writes the file, once, and the metadata of those that have waited for it: they are written when
  // all that tell of them are; with a key, an earlier one would be as good as the later.
  Result<void> finish(DumpedFile& file);
  // When CRIU asks for nothing more. Who waits for a /dev/kfd that it has not asked for waits in vain.
  Result<void> finish_all();

  // Waits for what flows. `say`: warns of what CRIU has not asked for.
  void drop(bool say);

 private:
  Result<void> add_kfd(TakenFile taken);
  Result<void> add_render(TakenFile taken);
  Result<DumpedFile*> begin_late_kfd();
  Result<DumpedFile*> begin_late_render();
  Result<void> tell_of(const KfdFile& file);
  bool awaits_kfd(const DumpedFile& file) const;

  kfd::UnpauseGuard& sessions_;
  DumpRun& run_;
  KfdFile::All kfd_;
  std::vector<std::unique_ptr<RenderDump>> render_;
  std::vector<std::pair<ProcessGpu, std::vector<pid_t>>> gpus_;  // with the holders of the KFD file
  bool unlisted_said_ = false;
};

}  // namespace sluice::plugin
