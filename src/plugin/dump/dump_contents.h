// SPDX-License-Identifier: MIT
// What one dump's open files have in common, and how the GPU memory of one of them gets into pages files: it
// flows beside whatever the host does, under working names, and is given its names when the host has said
// which file it is.
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
#include "plugin/contents/contents.h"
#include "plugin/contents/stats.h"
#include "plugin/contents/vram_watch.h"
#include "plugin/dump/image_set.h"
#include "plugin/dump/shared_bos.h"
#include "settings/config.h"

namespace sluice::plugin {

// Where BOs of render nodes lie: their ends by render minor and mmap offset.
using BoRanges = std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t>;

// What all open files of one dump have in common. Outlives them.
struct DumpRun {
  dev_t kfd_device = 0;  // 0: no KFD on this machine
  Result<void> ready;    // not so: fails the dump of a GPU process, not that of every other process
  Config config;
  kfd::Topology topology;  // local
  DumpId dump_id{};
  std::uint32_t kfd_minor_version = 0;
  VramWatch vram;  // looked at before the first contents, too
  SharedByJobs shared{vram};
  ImageSet images;
  // What each process can have mapped again: BOs of the files that are restored in it.
  std::map<pid_t, BoRanges> maps;
  SharedBos shared_bos;
  unsigned begun = 0;                          // open files with contents
  std::map<std::uint32_t, std::size_t> lanes;  // started and not joined, by render minor

  // Saves metadata, the last of a file: it stands only beside complete contents.
  Result<void> save(const std::string& name, std::span<const std::uint8_t> payload) const;
};

// A signal has come: nothing more is begun, and no more queues are stopped, which are about to run again.
Result<void> check_stopped(const SharedByJobs& shared);

bool share_any(const std::vector<pid_t>& left, const std::vector<pid_t>& right);

class DumpContents {
 public:
  explicit DumpContents(DumpRun& run) : run_(run), number_(run.begun++) {
    times_.began_ns = run.shared.world.now_ns();
  }

  // GPUs whose contents have not been started yet.
  std::vector<GpuContents>& waiting() { return waiting_; }
  // Whether the staging memory has room for them beside the lanes that were started and not joined. Others
  // would wait for it (LaneRoom), each in a thread of its own.
  bool has_room() const;

  // Starts a lane for each of them. `id`: of streams, which have their names from the start.
  Result<void> start(std::optional<int> id);
  bool started() const { return started_; }

  // Joins the lanes and gives the files their names under `id`.
  Result<void> join(int id);

  // The last step, when the metadata stand as well: what it took, as sluice-stats-dump-<id>.json.
  void write_stats(int id);

 private:
  std::string take_working_name(std::uint32_t gpu_id);

  DumpRun& run_;
  unsigned number_;
  FileTimes times_;
  std::vector<GpuContents> waiting_;
  std::vector<std::uint32_t> minors_;  // of those that were started
  bool started_ = false;
  std::unique_ptr<ContentsJob> job_;
};

}  // namespace sluice::plugin
