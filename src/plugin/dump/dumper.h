// SPDX-License-Identifier: MIT
// The dump stage: from the first device map CRIU asks about to exit(). One Dumper per criu run, main thread
// only.
//
//   tree -> TreeFiles -> survey (stops queues) -> Survey -> plan (no effects) -> DumpPlan -> carry -> commit
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "images/files/directory_lock.h"
#include "kfd/criu_ops.h"
#include "plugin/dump/basis/dump_basis.h"
#include "plugin/dump/carry/carrier.h"
#include "plugin/dump/carry/commit.h"
#include "plugin/dump/carry/image_set.h"
#include "plugin/dump/survey/survey.h"
#include "plugin/dump/tree/target_tree.h"
#include "plugin/host/criu_host.h"
#include "plugin/host/held_signals.h"

namespace sluice::plugin {

class Dumper {
 public:
  // Reads configuration and topology; `store` is borrowed. Without KFD, no file is the dumper's own.
  static Result<std::unique_ptr<Dumper>> make(ImageStore& store);
  ~Dumper();  // unpauses what finish() could not

  // PAUSE_DEVICES: `pid` belongs to the tree.
  void note_task(pid_t pid) { tree_.add(pid); }

  // CHECKPOINT_DEVICES: stops the queues of all KFD processes of the tree, and starts their contents and
  // those of all render files, once.
  Result<void> begin_all();

  // DUMP_EXT_FILE. 0 if the file is ours and dumped, nothing if it is not ours. `fd` is a descriptor of the
  // target's open file, borrowed.
  Result<Answer> dump_file(int fd, int id);

  // HANDLE_DEVICE_VMA: 0 for maps of /dev/kfd and of AMD render nodes, nothing for others. EINVAL if a
  // process of the tree maps /dev/kfd without a descriptor of it, because only that reaches its GPU state.
  // EINVAL also if a process maps a render node and none holds a file of ours.
  Result<Answer> accept_map(const struct stat& st);

  // DUMP_DEVICES_LATE: joins and writes the rest while an error can still fail the dump. The queues stay
  // stopped, because CRIU has yet to dump shared memory and private file systems, which GPUs may also write.
  Result<void> finish_late();

  // This dump has stopped queues of a process.
  bool has_stopped_queues() const { return sessions_.paused_count() > 0; }

  // exit(): unpauses on every path; `ret` < 0, or an error of what was left to do: removes the images of this
  // dump, metadata first.
  Result<void> finish(int ret);
  // finish() has removed the images of a dump that CRIU takes for a success.
  bool is_undone() const { return undone_; }

  // Replaces all of that when the process exits on top of a hook: resumes the queues and removes the images.
  // Waits for nothing and allocates nothing, because the hook may have been in malloc().
  void abandon() noexcept;

 private:
  Dumper(dev_t kfd_device, ImageStore& store);
  Result<void> prepare();
  template <class Step>
  Result<void> with_signals_held(const Step& step);
  Result<void> begin_tree(KernelWait wait);
  Result<void> plan_and_start(TreeFiles open, KernelWait wait);
  Result<void> check_map_of(dev_t device);
  Result<void> note_in_inventory();
  Result<bool> dump_if_ours(int fd, int id);
  Result<void> dump_device(int fd, int id, bool is_kfd);
  Result<bool> dump_dmabuf(int fd, int id);
  Result<void> dump_as(int id, std::size_t file);
  Result<void> lock_directory();
  Result<void> clear_directory();
  Result<void> finish_tree();
  Result<void> check_parent() const;
  bool has_files() const { return commit_ && !commit_->plan().files.empty(); }

  DirectoryLock directory_;  // from the first file of ours to the end
  DumpBasis basis_;
  Result<void> ready_;  // an error fails the dump of a GPU process, not that of other processes
  VramWatch vram_;      // checked before the first contents, too
  SharedByJobs shared_;
  HeldSignals signals_;  // outlives all below: held signals act when the queues run
  TargetTree tree_;
  kfd::UnpauseGuard sessions_;
  ImageSet images_;
  Carrier carrier_;
  std::optional<Commit> commit_;  // once the tree has begun
  Result<void> known_;            // why the tree's files could not be taken
  bool begun_ = false;
  bool ended_ = false;  // nothing more can come
  bool in_inventory_ = false;
  bool undone_ = false;
  std::uint64_t stopped_from_ns_ = 0;
};

}  // namespace sluice::plugin
