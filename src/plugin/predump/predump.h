// SPDX-License-Identifier: MIT
// A pre-dump: the processes' GPU contents are copied into files while they run. The next dump takes these for
// its parent and writes only what has changed.
//
// The tree's processes are stopped and traced by the calling thread from before begin() until after it. All
// of this happens in begin(), because later there may be no tracer: the queues stop, the kernel exports the
// BOs, and the queues resume. Then lanes copy. A copy of a BO that changes meanwhile is torn; its sums match
// the bytes written, so the dump finds the BO changed.
//
// It never holds more memory than is free (memory_keeper.h). What it cannot hold is left out, or copied in
// further shares, for each of which the processes are stopped again.
//
// Files have their own names (predump_name()). Without the mark, which finish() writes last, they cannot be a
// parent. CRIU's pre-dump (host_predump.h) and `sluice predump` use this. Main thread only.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "images/chain/predump_mark.h"
#include "kfd/criu_ops.h"
#include "plugin/dump/basis/dump_basis.h"
#include "plugin/dump/carry/carrier.h"
#include "plugin/dump/carry/commit.h"
#include "plugin/dump/carry/image_set.h"
#include "plugin/dump/survey/survey.h"
#include "plugin/dump/tree/target_tree.h"
#include "plugin/predump/memory_keeper.h"

namespace sluice::plugin {

class PreDump {
 public:
  enum class Shares : std::uint8_t { One, Many };
  // `store`: of a directory that stays open and locked (directory_lock.h); borrowed. `kfd_device`: this
  // machine's /dev/kfd.
  PreDump(ImageStore& store, dev_t kfd_device, Shares shares);
  ~PreDump();  // cancels, unless finish() has succeeded
  PreDump(const PreDump&) = delete;
  PreDump& operator=(const PreDump&) = delete;

  // Call before tree() is asked whose a device is. Errors: local_topology()'s.
  Result<void> read_machine();
  // Next: reads the key. Errors: those of reading; EINVAL if checksums are switched off.
  Result<void> prepare(const settings::Config& config);
  // Next: reads the parent's sums. Errors: find_parent()'s.
  Result<void> look_for_parent() { return basis_.look_for_parent(); }

  TargetTree& tree() { return tree_; }
  const TargetTree& tree() const { return tree_; }
  // Set to end it: lanes end at their next chunk.
  std::atomic<bool>& stopped() { return shared_.stopped; }

  // REQUIRES: look_for_parent() has succeeded. Errors: those of a dump up to the start of its contents; then
  // nothing copies. queues_stand() tells whether UNPAUSE was refused.
  Result<void> begin();
  bool queues_stand() const { return sessions_.paused_count() > 0; }
  // Like begin(), for a further share. `pids`: the tree's processes, stopped and traced again. Errors: as
  // begin()'s; then the share is empty.
  Result<void> begin_share(const std::vector<pid_t>& pids);
  // There is something to copy. After begin().
  bool any_contents() const { return commit_ && !commit_->plan().files.empty(); }
  std::uint64_t frozen_ns() const { return frozen_ns_; }  // in all shares
  std::uint32_t shares() const { return shares_; }        // that were begun
  // After finish().
  const Carrier::Totals& totals() const { return carrier_.totals(); }

  // Waits for the lanes, renames the files, writes the mark. With Shares::Many it calls `next_share` when
  // lanes need one, which stops the processes and calls begin_share(). Errors: the lanes'; those of writing;
  // ECANCELED once it was stopped; those of a share that leaves queues stopped. On error all files are
  // removed.
  Result<void> finish(const std::function<Result<void>()>& next_share = nullptr);
  // Ends the lanes, removes the files, and retries to resume queues that are still stopped.
  void cancel();
  // The same on top of any call of this class: allocates nothing, and waits ten seconds for the lanes at
  // most. A lane that goes on for longer may leave an unfinished file.
  void abandon() noexcept;

 private:
  struct Lane {
    std::vector<pid_t> holders;
    std::shared_ptr<BoKeeper> bos;
  };

  Result<DumpPlan> survey_and_plan(const DumpBasis& basis, const TargetTree& tree);
  void keep(LaneContents& lane, const PlannedFile& file);
  Result<void> write_all(const std::function<Result<void>()>& next_share);
  Result<void> wait_for(std::size_t file, const std::function<Result<void>()>& next_share);
  Result<void> take_share(const std::function<Result<void>()>& next_share);
  void say_what_was_left_out() const;

  DumpBasis basis_;
  VramWatch vram_;
  SharedByJobs shared_;
  TargetTree tree_;
  kfd::UnpauseGuard sessions_;
  const bool many_shares_;
  std::uint32_t shares_ = 0;
  std::uint64_t next_share_ns_ = 0;  // not before
  std::uint64_t frozen_ns_ = 0;
  std::vector<Lane> lanes_;
  MemoryKeeper memory_;
  ImageSet images_;
  Carrier carrier_;
  std::optional<Commit> commit_;  // from begin() on
  bool finished_ = false;
};

}  // namespace sluice::plugin
