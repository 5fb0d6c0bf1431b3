// SPDX-License-Identifier: MIT
// All open files of one dump: those of /dev/kfd, and those of render nodes, about which the KFD processes
// know more.
//
// Main thread only.
#pragma once

#include <sys/types.h>

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "kfd/criu_ops.h"
#include "plugin/dump/files/kfd_file.h"
#include "plugin/dump/files/render_dump.h"
#include "plugin/dump/files/target_tree.h"

namespace sluice::plugin {

class DumpedFiles {
 public:
  // Borrowed.
  DumpedFiles(kfd::UnpauseGuard& sessions, DumpRun& run) : sessions_(sessions), run_(run) {}

  bool empty() const { return kfd_.empty() && render_.empty(); }
  // In the order in which they are begun: /dev/kfd first.
  std::vector<DumpedFile*> all() const;
  // The processes that have any of them open.
  std::set<pid_t> holders() const;
  // The same open file as `fd`, if CRIU has not asked for it yet; else null.
  Result<DumpedFile*> find(int fd, kfd::FileKind kind) const;

  // Lists a render file's BOs; ends an older dump's pause of a /dev/kfd file. All are added before the first
  // is begun, for two reasons. Processes that an older dump has left paused must run again first, and a
  // process that maps a render node may map any file's BOs.
  Result<void> add(TakenFile taken);
  // `unread`: nobody has read memory of the tree, so its processes' queues may run once more. Errors: those
  // of settle_losses(), too.
  Result<void> begin_all(bool unread);
  // Adds memory that no other file has as its own file, and begins it.
  Result<DumpedFile*> add_memory(std::unique_ptr<RenderDump> memory);
  // Called when all are begun: decides which BOs are shared, and tells the render files what the KFD
  // processes know. Errors: those of SharedBos::settle() and RenderDump::settle().
  Result<void> settle();
  // A file that was not seen in advance: all of the above. Errors: EINVAL for a render file that has BOs.
  Result<DumpedFile*> begin_late(TakenFile taken);

  // Before anything is written. Errors: RenderDump::look_at_vram()'s.
  Result<void> look_at_vram() const;
  // Joins and writes the file, once, and the metadata that waited for it. Metadata are written once all files
  // they depend on are known: with a key, an earlier version would be as valid as the later one.
  Result<void> finish(DumpedFile& file);
  // When CRIU asks for nothing more. Files that wait for a /dev/kfd that CRIU has not asked for wait no
  // longer.
  Result<void> finish_all();

  // Waits for what still flows. `say`: warns about files that CRIU has not asked for.
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
