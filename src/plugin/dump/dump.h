// SPDX-License-Identifier: MIT
// The dump stage: from the first device map CRIU asks about to exit(). One Dumper per criu run, main thread
// only.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kfd/criu_ops.h"
#include "kfd/open_dmabufs.h"
#include "plugin/dump/process_dump.h"
#include "plugin/dump/render_dump.h"
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
  // An open file of /dev/kfd. Through one of each KFD process that process is dumped; others are aliases.
  struct KfdFile {
    std::vector<pid_t> holders;           // processes whose descriptor it is
    std::string name;                     // of its process, for messages
    kfd::CriuSession* session = nullptr;  // has a descriptor of it
    std::unique_ptr<ProcessDump> process;
    std::optional<std::size_t> alias_of;  // another one of kfd_files_; then it has no process
    std::optional<int> id;                // CRIU's, once DUMP_EXT_FILE has come for it
    bool finished = false;                // in the images

    bool begun() const { return process || alias_of; }
  };
  // An open file of a render node.
  struct RenderFile {
    std::unique_ptr<RenderDump> dump;
    std::optional<int> id;
    bool finished = false;
    ino_t dmabuf = 0;  // of no task, but the memory of this one, which tasks have open
  };

  Dumper(RunStage stage, dev_t kfd_device)
      : stage_(stage),
        signals_(run_.shared.stopped),
        kfd_device_(kfd_device),
        tree_(kfd_device, run_.topology) {}
  Result<void> prepare();
  Result<void> check_map_of(dev_t device);
  Result<void> note_in_inventory();
  template <class Step>
  Result<void> with_signals_held(const Step& step);
  Result<bool> dump_if_ours(int fd, int id);
  Result<void> begin_tree();
  Result<void> check_index_can_be() const;
  Result<void> check_index_is_open(int id) const;
  Result<void> dump_kfd(int fd, int id);
  Result<bool> dump_dmabuf(int fd, int id);
  Result<void> dump_memory_of(ino_t dmabuf, int id);
  Result<void> find_memory_of_dmabufs();
  Result<void> open_files();
  Result<void> add_kfd(UniqueFd own, std::vector<pid_t> holders);
  Result<void> add_render(UniqueFd own, std::vector<pid_t> holders, std::uint32_t minor);
  Result<KfdFile*> find_kfd(int fd);
  Result<RenderFile*> find_render(int fd);
  Result<void> begin(KfdFile& file);
  Result<void> start_contents(const DumpContents* wanted, std::optional<int> id);
  void share_staging(const std::vector<DumpContents*>& waiting);
  Result<void> finish_file(KfdFile& file);
  Result<void> finish_file(RenderFile& file);
  bool streams_flow_on() const;
  Result<void> finish_streams_behind_the_last();
  Result<void> finish_streams();
  Result<void> finish_images();
  Result<void> finish_tree();
  Result<void> write_metadata(const std::string& name, std::span<const std::uint8_t> payload);
  Result<void> write_alias(const KfdFile& file);
  Result<void> dump_render(int fd, int id, std::uint32_t minor);
  Result<std::optional<std::size_t>> find_alias(const KfdFile& wanted) const;
  Result<void> begin(RenderDump& render);
  Result<bool> have_kfd(const std::vector<pid_t>& processes) const;
  Result<void> note_gpus(const KfdFile& file);
  Result<void> write(RenderDump& render);
  Result<void> clear_directory();
  Result<void> check_stopped() const;
  bool awaits_kfd(const RenderDump& render) const;
  Result<void> unpause_and_drop(bool say);
  void drop_files(bool say);

  RunStage stage_;
  DumpRun run_;
  HeldSignals signals_;  // outlives all below: what was held acts when the queues run
  dev_t kfd_device_;     // 0: no KFD on this machine
  TargetTree tree_;
  Result<void> prepared_;  // not so: fails the dump of a GPU process, not that of every other process
  kfd::UnpauseGuard sessions_;
  std::vector<KfdFile> kfd_files_;  // behind sessions_ and run_, which they use
  std::vector<RenderFile> render_files_;
  std::vector<kfd::OpenDmaBuf> dmabufs_;                         // of the tree
  std::map<ino_t, Error> dmabufs_not_restored_;                  // of these, why
  std::vector<std::pair<ProcessGpu, std::vector<pid_t>>> gpus_;  // with the holders of the KFD file
  bool in_inventory_ = false;
  bool tree_begun_ = false;
  bool tree_known_ = false;  // all files of ours that the tree has were found before the first was asked for
  bool staging_shared_ = false;  // of streams: by all of the tree, once
  bool index_saved_ = false;     // of streams: nothing more can come
  bool tree_finished_ = false;   // CRIU asks for nothing more, and all files may have been dropped
  bool unlisted_said_ = false;
};

}  // namespace sluice::plugin
