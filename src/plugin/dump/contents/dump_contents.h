// SPDX-License-Identifier: MIT
// What the open files of one dump share, and how one file's GPU memory gets into pages files. It flows under
// working names while the host does other work, and gets its final names once the host has named the file.
//
// Main thread only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kfd/topology.h"
#include "plugin/contents/contents_job.h"
#include "plugin/contents/stats.h"
#include "plugin/contents/vram_watch.h"
#include "plugin/dump/contents/image_set.h"
#include "plugin/dump/contents/parent.h"
#include "plugin/dump/contents/shared_bos.h"
#include "settings/config.h"

namespace sluice::plugin {

// Where BOs of render nodes lie: the ends of their ranges by render minor and mmap offset.
using BoRanges = std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t>;

// Statistics of one open file's contents.
struct FileStats {
  int id = 0;  // CRIU's
  FileTimes times;
  std::vector<GpuOutcome> gpus;
};

// Shared by all open files of one dump. Outlives them.
struct DumpRun {
  explicit DumpRun(ImageStore& where) : store(where) {}

  ImageStore& store;     // borrowed
  dev_t kfd_device = 0;  // 0: no KFD on this machine
  Result<void> ready;    // an error fails the dump of a GPU process, not that of other processes
  settings::Config config;
  kfd::Topology topology;  // local
  DumpId dump_id{};
  // The job runs while its contents are copied, so no lane is in a hurry, and files have their own, numbered
  // names.
  bool is_predump = false;
  bool is_again = false;  // its files were begun before, and what there is to warn of was said
  DumpParent parent;
  std::uint32_t kfd_minor_version = 0;
  std::uint64_t frozen_from_ns = 0;  // when the first queues were about to stop; 0: none were
  std::uint64_t frozen_ns = 0;       // until all ran again; set when they do
  std::vector<FileStats> stats;      // of all finished files
  VramWatch vram;                    // checked before the first contents, too
  SharedByJobs shared{vram, store};
  ImageSet images{store};
  // What each process can map again: BOs of the files that are restored in it.
  std::map<pid_t, BoRanges> maps;
  SharedBos shared_bos;
  struct Totals {
    std::uint64_t bytes = 0;                   // of BOs
    std::uint64_t io_bytes = 0;                // written
    std::uint64_t skipped_bytes = 0;           // of BOs that a pre-dump has not
  } totals;                                    // of joined contents
  unsigned begun = 0;                          // open files with contents
  std::map<std::uint32_t, std::size_t> lanes;  // started and not joined, by render minor

  // Sets `parent` and what depends on it. REQUIRES: `config`, the store's keys, and sums of a dump without a
  // parent. Errors: find_parent()'s.
  Result<void> look_for_parent();
  // The name here of the metadata that a complete dump calls `in_dump`. A dump that leaves contents to its
  // parent has other names for all of them, even if it finds nothing to leave.
  std::string name_of(const std::string& in_dump) const;
  // Saves a file's metadata, last: it appears only beside complete contents.
  Result<void> save(const std::string& name, std::span<const std::uint8_t> payload) const;

  // Called when the queues run again, so they do not wait for it: sluice-stats-dump-<id>.json.
  void write_stats();
};

// ECANCELED after a signal: nothing more is begun and no more queues are stopped, because they would run
// again at once.
Result<void> check_stopped(const SharedByJobs& shared);

bool share_any(const std::vector<pid_t>& left, const std::vector<pid_t>& right);

class DumpContents {
 public:
  explicit DumpContents(DumpRun& run) : run_(run), number_(run.begun++) {
    times_.began_ns = run.shared.world.now_ns();
  }

  // Lanes not started yet.
  std::vector<LaneContents>& waiting() { return waiting_; }
  // Whether the staging memory has room for them beside the lanes started and not joined. Otherwise they
  // would wait for it (LaneRoom), each in its own thread.
  bool has_room() const;

  // Starts them. `id`: if files have their final names from the start.
  Result<void> start(std::optional<int> id);
  bool started() const { return started_; }
  // Whether all its lanes end within `ns`. REQUIRES: started().
  bool ends_within(std::uint64_t ns) { return job_->ends_within(ns); }

  // Joins the lanes and renames the files for `id`.
  Result<void> join(int id);

  // The last step, after the metadata are written: adds to the statistics.
  void note_stats(int id);

 private:
  std::vector<std::string> take_working_names(const PagesSet& pages);

  DumpRun& run_;
  unsigned number_;
  FileTimes times_;
  std::vector<LaneContents> waiting_;
  std::vector<std::uint32_t> minors_;  // of the started lanes
  bool started_ = false;
  std::unique_ptr<ContentsJob> job_;
};

}  // namespace sluice::plugin
