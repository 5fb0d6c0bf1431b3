// SPDX-License-Identifier: MIT
// The contents of one open file's BOs, on the way to or from their pages files. A KFD process has one lane
// per GPU, all at once; a render file has one lane.
//
// The dump, a task that restores itself and the content server in CRIU's main process all use this job. Any
// number of jobs run at once. dump() and restore() start the lane threads and return. A restore's lanes touch
// nothing before begin(), so a caller that never calls it may leave the BOs to another writer. wait() joins
// the threads. Nothing outlives wait(), or the destructor if wait() gave up: no thread, ring, io-wq worker,
// map or fd.
//
// dump:    BO table → layout → chunk → [slot] → SDMA copy → checksum → file     then sums, then rename
// restore: file → checksum (compared before it goes on) → SDMA copy → BO
//
// A dump's lanes write side by side, and a restore's read side by side. If images come one at a time
// (ImageStore::one_way), a restore's lanes run one after another, each with its sidecar first.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "images/chain/ancestor.h"
#include "images/pages.h"
#include "images/sums.h"
#include "pipeline/extents/shared_reader.h"
#include "pipeline/pipeline.h"
#include "pipeline/store/fair_share.h"
#include "plugin/contents/contents_world.h"
#include "plugin/contents/lane_room.h"
#include "plugin/contents/lane_sources.h"
#include "plugin/contents/replicas.h"
#include "plugin/contents/vram_watch.h"
#include "plugin/host/criu_host.h"
#include "plugin/host/image_store.h"
#include "settings/config.h"

namespace sluice::plugin {

// One lane's work: contents of one owner's BOs, and the memory that holds them. Made when the maker of each
// BO is known; constant from then on.
struct LaneContents {
  // Takes the dma-bufs of the set's BOs out of `all`, those of the whole BO table. `render_minor`: of the
  // local GPU.
  LaneContents(PagesSet set, std::vector<UniqueFd>& all, std::uint32_t render_minor);
  LaneContents() = default;

  PagesSet pages;
  std::vector<UniqueFd> dmabufs;   // one per BO; each is closed once its first piece has been imported
  std::uint32_t render_minor = 0;  // of the local GPU that holds the BOs
  int numa_node = -1;              // of that GPU, -1 = unknown
  unsigned sharers = 1;  // lanes of the whole dump or restore that use this GPU and share its staging
  // Pre-dump: gives the BOs' dma-bufs, and `dmabufs` is empty; null in a dump.
  std::shared_ptr<drm::BoSource> giver;
  // Dump: its number in the plan, and the lanes before it that may have the same contents.
  std::uint32_t number = 0;
  std::vector<PlannedLeader> leaders;
};

// How a dump writes the files of one lane.
struct LaneFiles {
  // Names until commit(). An existing file of this name is overwritten where the configuration says so. Where
  // images go one way, the final names.
  std::vector<std::string> names;
  unsigned turn = 0;  // lower turns come first on the disk
};

// What the lanes of a dump compare contents with. Set before the first job.
struct DumpSums {
  SumMethod method;  // how all its sums of contents are made
  // Contents of this checkpoint are not written again. Borrowed; null: everything is written.
  const Ancestor* parent = nullptr;
  // If not 0, extents of the parent, and of other files of the dump, are shared instead, where they are
  // multiples of this many bytes. 0: what others have is left out, and the sidecar says where it is.
  std::uint64_t clone_block_bytes = 0;
};

// Of a restore out of a stream: held by the lane whose files are next. So one thread opens each file and
// reads it to its end without waiting for anyone.
struct StreamTurn {
  Mutex mutex;
  // Why a lane gave up its files early. That ends an image streamer, so it is asked for nothing more: later
  // lanes fail with the same error.
  std::optional<Error> failure SLUICE_GUARDED_BY(mutex);
};

// Warnings that are logged once.
struct Warned {
  std::atomic<bool> clone_refused{false};  // dump
  std::atomic<bool> unverified{false};     // restore: a file has no checksums
};

// Shared by all jobs of one dump or restore. Outlives them.
struct SharedByJobs {
  // Borrows all arguments.
  SharedByJobs(VramWatch& watch, ImageStore& images, ContentsWorld& around = ContentsWorld::real())
      : world(around), store(images), room(around), vram(watch) {}

  ContentsWorld& world;
  ImageStore& store;
  LaneRoom room;                        // for the staging memory
  VramWatch& vram;                      // each lane looks at it, at its start and at its end
  FairShare disk;                       // all lanes use one directory
  std::atomic<std::size_t> lanes{1};    // that may run at once
  std::atomic<std::size_t> running{0};  // lanes at work
  std::atomic<bool> stopped{false};     // dump: set to end it. Lanes end at their next chunk, with ECANCELED
  Warned warned;
  DumpSums sums;
  Replicas replicas;  // of a dump
  RestoreParents parents;
  ReadBySeveral read_by_several;
  // Of a restore whose lanes are all in this process; null: lanes of several processes read the same files.
  std::unique_ptr<SharedReaders> readers;
  StreamTurn stream;
};

// Dump: ECANCELED after a signal. Nothing more is begun and no more queues are stopped, because they would
// run again at once.
Result<void> check_stopped(const SharedByJobs& shared);

// How long a stopped job is waited for. I/O that a disk has accepted cannot be taken back, and a slow or hung
// disk must not keep the processes' queues stopped.
inline constexpr auto kStopPatience = std::chrono::milliseconds(100);

// The result for one GPU's contents. Times in nanoseconds of the world's clock, from the lane's start to its
// durable end.
struct GpuOutcome {
  std::uint32_t gpu_id = 0;
  std::uint64_t bos = 0;
  std::uint64_t bytes = 0;  // of BO contents
  std::uint64_t zero_bytes = 0;
  std::uint64_t io_bytes = 0;       // moved to or from the file
  std::uint64_t parent_bytes = 0;   // dump: not written, because the parent has it
  std::uint64_t replica_bytes = 0;  // dump: not written, because another GPU's file has it
  std::uint64_t skipped_bytes = 0;  // pre-dump: of BOs that were left to the dump
  std::uint64_t pinned_bytes = 0;   // staging registered with GPU and ring
  bool direct_io = false;
  bool verified = false;  // restore: every block was compared with its sum
  std::uint64_t began_ns = 0;
  std::uint64_t ended_ns = 0;
  PipelineStats stats;
  Trace trace;  // if the configuration asks for one

  double seconds() const { return static_cast<double>(ended_ns - began_ns) / 1e9; }
};

class ContentsJob {
 public:
  // Start one lane for each of `lanes`, all of which have BOs; `files` are the lanes'. `shared` is borrowed
  // until the job is destroyed. `dump_id` ties the sidecars to the metadata image: written by a dump,
  // compared by a restore (all zero: the image has none). `id` is CRIU's number of the open file and names
  // the images. A restore's lanes wait for begin(). Errors: EAGAIN (threads), those of opening or reading a
  // sidecar. On error nothing is running.
  static Result<std::unique_ptr<ContentsJob>> dump(std::vector<LaneContents> lanes,
                                                   std::vector<LaneFiles> files,
                                                   const settings::Config& config, const DumpId& dump_id,
                                                   SharedByJobs& shared);
  static Result<std::unique_ptr<ContentsJob>> restore(int id, std::vector<LaneContents> lanes,
                                                      const settings::Config& config, const DumpId& dump_id,
                                                      SharedByJobs& shared);
  ~ContentsJob();  // cancels and joins

  // Restore: from now on this job alone fills the BOs. Allocates nothing and cannot fail.
  void begin();

  // After begin(): waits for all lanes; the first error of any lane wins and stops the others. `report` (may
  // be null) is called about once a second with a line of progress, from the calling thread. Once
  // SharedByJobs::stopped is set, it waits for kStopPatience at most and returns ECANCELED; the destructor
  // joins lanes that still run.
  Result<void> wait(const std::function<void(const std::string&)>& report);

  // Whether all lanes end within `ns`. After begin(), before wait().
  bool ends_within(std::uint64_t ns);

  // How many lanes it has, until wait().
  std::size_t lanes() const { return loads_.size(); }

  // Dump: the names of all pages files and sidecars under CRIU's file id.
  std::vector<std::string> image_names(int id) const;

  // Dump, after commit(): the files of other lanes that have much of what its own have.
  std::vector<std::string> replica_files() const;

  // Dump, after wait() succeeded: writes the sidecars and renames the pages files to their names.
  Result<void> commit(int id);

  // Running lanes stop at their next chunk with ECANCELED; lanes that wait for begin() end at once.
  void cancel();

  // After wait():
  const std::vector<GpuOutcome>& outcomes() const { return outcomes_; }
  // The lanes' log lines, for a thread that may log. Empties the list.
  LogLines take_log_lines();

 private:
  struct Load;
  ContentsJob(Direction direction, int id, const settings::Config& config, const DumpId& dump_id,
              SharedByJobs& shared);
  Result<void> start(std::vector<LaneContents> lanes, std::vector<LaneFiles> files);
  Result<std::unique_ptr<Load>> make_load(LaneContents contents, LaneFiles files);
  bool take_place(Load& load, const std::function<bool()>& gives_up);
  Result<void> take_match(Load& load, std::uint64_t copied_bytes);
  Result<void> tell_followers(Load& load);
  Result<void> take_sums(const PagesSet& pages, const ImageLayout& layout, Sidecar& sidecar, bool& has_sums);
  void run_and_report(Load& load) noexcept;
  Result<void> run_lane(Load& load);
  std::uint32_t cursors_of(const Load& load) const;
  Result<void> carry(Load& load);
  Result<void> leave_out(Load& load);
  Result<void> flow(Load& load, Lane& lane, Stage& copy);
  Result<Stage*> own_copy(Load& load, Lane& lane, LaneGpu& gpu);
  Result<std::unique_ptr<Stage>> make_copy(Load& load, Lane& lane, LaneGpu& gpu);
  Result<Stage*> own_gate(Load& load, Lane& lane);
  Result<Stage*> own_checksum(Load& load, Lane& lane);
  Result<std::unique_ptr<ExtentCloner>> make_cloner(Load& load, const Lane& lane);
  Result<PagesStage> make_store(Load& load, Lane& lane, ExtentCloner* cloner);
  bool reads_once(const Load& load) const;
  Result<void> look_at_vram(const Load& load, LaneGpu& gpu);
  bool is_stopped() const { return cancelled_ || shared_.stopped; }
  void note(Level level, std::string text);

  Direction direction_;
  int id_;  // restore only
  settings::Config config_;
  DumpId dump_id_;
  SharedByJobs& shared_;
  std::vector<std::unique_ptr<Load>> loads_;
  std::vector<GpuOutcome> outcomes_;
  std::atomic<bool> cancelled_{false};
  Mutex mutex_;
  std::condition_variable may_begin_;
  std::condition_variable lane_ended_;
  bool begun_ SLUICE_GUARDED_BY(mutex_) = false;
  std::size_t running_ SLUICE_GUARDED_BY(mutex_) = 0;
  bool failed_ SLUICE_GUARDED_BY(mutex_) = false;
  Error first_error_ SLUICE_GUARDED_BY(mutex_);
  LogLines log_lines_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::plugin
