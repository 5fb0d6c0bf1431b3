// SPDX-License-Identifier: MIT
// The dump stage: from the first device map CRIU asks about to exit(). One Dumper per criu run, main thread
// only.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "kfd/criu_ops.h"
#include "plugin/dump/content_schedule.h"
#include "plugin/dump/dmabuf_memory.h"
#include "plugin/dump/dump_contents.h"
#include "plugin/dump/dumped_files.h"
#include "plugin/dump/target_tree.h"
#include "plugin/host/criu_host.h"
#include "plugin/host/held_signals.h"

namespace sluice::plugin {

class Dumper {
 public:
  // Reads configuration and topology. A machine without KFD gives a dumper to which nothing is its own. In a
  // pre-dump only accept_map() is asked, and nothing must change: CRIU never calls exit() after it.
  static Result<std::unique_ptr<Dumper>> make(RunStage stage);
  ~Dumper();  // unpauses what finish() could not

  // PAUSE_DEVICES: `pid` is of the tree.
  void note_task(pid_t pid) { tree_.add(pid); }

  // CHECKPOINT_DEVICES: stops the queues of every KFD process of the tree, and starts the contents of these
  // and of all render files, once.
  Result<void> begin_all();

  // DUMP_EXT_FILE. 0 when the file is ours and dumped, nothing when it is not ours. `fd` is a descriptor of
  // the target's open file, borrowed.
  Result<Answer> dump_file(int fd, int id);

  // HANDLE_DEVICE_VMA: 0 for maps of /dev/kfd and of AMD render nodes, nothing for others. EINVAL where a
  // process of the tree maps /dev/kfd and holds no descriptor of it, through which alone its GPU state could
  // be reached, or one maps a render node and none holds a file of ours.
  Result<Answer> accept_map(const struct stat& st);

  // DUMP_DEVICES_LATE: joins and writes what is left, where that can still fail the dump. The queues stay
  // stopped: CRIU has yet to dump memory that is shared, and that of private file systems, which GPUs may
  // write, too.
  Result<void> finish_late();

  // Queues of a process stand still because of this dump.
  bool has_stopped_queues() const { return sessions_.paused_count() > 0; }

  // exit(): unpauses on every path; `ret` < 0: removes the images of this dump, metadata first.
  Result<void> finish(int ret);

  // In place of all that when the process ends on top of a hook, wherever that stands: queues run, images go.
  // Waits for nothing and allocates nothing, for the hook may have been in malloc().
  void abandon() noexcept;

 private:
  // How far the tree's files have come.
  enum class Phase : std::uint8_t {
    Waiting,     // none was looked at
    OneByOne,    // each as CRIU asks for it, for they could not be seen in advance, or all are being begun
    AllKnown,    // all were begun before CRIU asked for the first
    IndexSaved,  // of streams: nothing more can come
    Finished,    // CRIU asks for nothing more
  };

  Dumper(RunStage stage, dev_t kfd_device);
  Result<void> prepare();
  template <class Step>
  Result<void> with_signals_held(const Step& step);
  Result<void> begin_tree();
  Result<void> add_files();
  Result<void> check_map_of(dev_t device);
  Result<void> note_in_inventory();
  Result<bool> dump_if_ours(int fd, int id);
  Result<void> dump_device(int fd, int id, kfd::FileClass device);
  Result<bool> dump_dmabuf(int fd, int id);
  Result<void> dump_as(int id, DumpedFile& file);
  Result<void> check_index_can_be() const;
  Result<void> check_index_is_open(int id) const;
  Result<void> start_contents(const DumpContents* wanted, std::optional<int> id);
  Result<void> clear_directory();
  Result<void> finish_streams();
  Result<void> finish_tree();

  RunStage stage_;
  DumpRun run_;
  HeldSignals signals_;  // outlives all below: what was held acts when the queues run
  TargetTree tree_;
  kfd::UnpauseGuard sessions_;
  DumpedFiles files_{sessions_, run_};  // after sessions_ and run_, which they use
  DmaBufs dmabufs_{run_};
  ContentSchedule schedule_{run_.config, run_.shared};
  Phase phase_ = Phase::Waiting;
  bool in_inventory_ = false;
};

}  // namespace sluice::plugin
