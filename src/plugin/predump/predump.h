// SPDX-License-Identifier: MIT
// A pre-dump: the processes' GPU contents are copied into files while they run. The next dump takes these for
// its parent and writes only what has changed.
//
// The tree's processes are stopped and traced by the calling thread from before begin() until after it. All
// of this happens in begin(), because later there may be no tracer: the queues stop, the kernel exports the
// BOs, and the queues resume. Then lanes copy. A copy of a BO that changes meanwhile is torn; its sums match
// the bytes written, so the dump finds the BO changed.
//
// Files have their own names (predump_name()). Without the mark, which finish() writes last, they cannot be a
// parent. CRIU's pre-dump (host_predump.h) and `sluice predump` use this. Main thread only.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "images/chain/predump_mark.h"
#include "kfd/criu_ops.h"
#include "plugin/dump/contents/content_schedule.h"
#include "plugin/dump/contents/dump_contents.h"
#include "plugin/dump/contents/parent.h"
#include "plugin/dump/files/dumped_files.h"
#include "plugin/dump/files/target_tree.h"
#include "plugin/predump/vram_keeper.h"

namespace sluice::plugin {

class PreDump {
 public:
  // `store`: of a directory that stays open and locked (directory_lock.h); borrowed. `kfd_device`: this machine's /dev/kfd.
  PreDump(ImageStore& store, dev_t kfd_device);
  ~PreDump();  // cancels, unless finish() has succeeded
  PreDump(const PreDump&) = delete;
  PreDump& operator=(const PreDump&) = delete;

  // Call before tree() is asked whose a device is. Errors: local_topology()'s.
  Result<void> read_machine();
  // Next: reads the key and the parent's sums. Errors: those of reading; EINVAL if checksums are switched
  // off.
  Result<void> prepare(const settings::Config& config);

  TargetTree& tree() { return tree_; }
  const TargetTree& tree() const { return tree_; }
  // Set to end it: lanes end at their next chunk.
  std::atomic<bool>& stopped() { return run_.shared.stopped; }

  // REQUIRES: prepare() has succeeded. Errors: those of a dump up to the start of its contents; then nothing
  // copies. queues_stand() tells whether UNPAUSE was refused.
  Result<void> begin();
  bool queues_stand() const { return sessions_.paused_count() > 0; }
  // There is something to copy. After begin().
  bool any_contents() const { return !files_.empty(); }
  std::uint64_t frozen_ns() const { return run_.frozen_ns; }
  // After finish().
  const DumpRun::Totals& totals() const { return run_.totals; }

  // Waits for the lanes, renames the files, writes the mark. Errors: the lanes'; those of writing; ECANCELED
  // once it was stopped. On error all files are removed.
  Result<void> finish();
  // Ends the lanes, removes the files, and retries to resume queues that are still stopped.
  void cancel();
  // The same on top of any call of this class: allocates nothing, and waits ten seconds for the lanes at
  // most. A lane that goes on for longer may leave an unfinished file.
  void abandon() noexcept;

 private:
  Result<void> start();
  void keep(LaneContents& lane);
  Result<void> write_all();
  void say_what_was_left_out() const;

  DumpRun run_;
  TargetTree tree_;
  kfd::UnpauseGuard sessions_;
  VramKeeper vram_;
  DumpedFiles files_{sessions_, run_};  // after sessions_ and run_, which they use
  ContentSchedule schedule_{run_.config, run_.shared};
  bool finished_ = false;
};

}  // namespace sluice::plugin
