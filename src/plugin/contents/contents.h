// SPDX-License-Identifier: MIT
// The contents of the BOs of one open file, on the way to or from their pages files: those of a KFD process,
// one lane per GPU, all at once; or those of a render file, one lane.
//
// The same job serves the dump, a task that restores itself, and the content server in CRIU's main process.
// Any number of jobs run at once. dump() and restore() make the lane threads and return; a restore's touch
// nothing before begin(), so that whoever does not begin it may leave the BOs to another writer. wait() joins
// the threads. Nothing outlives wait(), or the destructor where wait() gave up: no thread, ring, io-wq
// worker, map or fd.
//
// dump:    BO table → layout → chunk → [slot] → SDMA copy → checksum → file     then sums, then rename
// restore: file → checksum (compared before it goes on) → SDMA copy → BO
//
// Where the host streams, pipes stand in place of the files. A dump's lanes write side by side; a restore's
// come one after another, each with its sidecar first.
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
#include "images/pages.h"
#include "images/sums.h"
#include "pipeline/pipeline.h"
#include "pipeline/store/fair_share.h"
#include "plugin/contents/contents_world.h"
#include "plugin/contents/lane_room.h"
#include "plugin/contents/vram_watch.h"
#include "plugin/host/criu_host.h"
#include "settings/config.h"

namespace sluice::plugin {

// One BO whose contents travel (VRAM or GTT). Sizes in bytes.
struct ContentBo {
  std::uint64_t bytes = 0;
  std::uint64_t va = 0;      // for messages
  UniqueFd dmabuf;           // closed as soon as its first piece has been imported
  std::uint32_t number = 0;  // in the BO table of its image; names the pages file of a render file's
};

// The BOs of one GPU that one lane carries. Those of a KFD process, in bucket order: one pages file. Those of
// a render file: one for each.
struct GpuContents {
  std::uint32_t gpu_id = 0;        // user gpu_id: names the files
  std::uint32_t render_minor = 0;  // of the local GPU that holds the BOs
  int numa_node = -1;              // of that GPU, -1 = unknown
  std::vector<ContentBo> bos;
  Sum128 bo_table_digest{};  // of the metadata image's entries for this GPU
  unsigned turn = 0;         // dump: contents of lower turns come first on the disk: they are asked for first
  unsigned sharers = 1;      // lanes of the whole dump or restore that use this GPU and share its staging
  // Of a render file: its minor in the image, which names the files.
  std::optional<std::uint32_t> drm_minor;
  bool has_sums = false;  // restore: the dump has written checksums
  // Dump: what the pages files are called until commit(); one of this name that is there is written over
  // where the configuration says so.
  // Those of streams are the names for good.
  std::vector<std::string> working_names;
};

// Names of the pages files under CRIU's file id, in the order of the BOs.
std::vector<std::string> pages_names(int id, const GpuContents& gpu);

// What all jobs of one dump or restore share. Outlives them.
struct SharedByJobs {
  // Borrows both.
  explicit SharedByJobs(VramWatch& watch, ContentsWorld& around = ContentsWorld::real())
      : world(around), room(around), vram(watch) {}

  ContentsWorld& world;
  LaneRoom room;                             // of the staging memory
  VramWatch& vram;                           // looked at by each lane, at its start and at its end
  FairShare disk;                            // all lanes write to, or read from, one directory
  std::atomic<std::size_t> lanes{1};         // that may run at once
  std::atomic<bool> unverified_said{false};  // restore: that a file has no checksums; once for all of them
  // Restore from streams: held by the lane whose files come. A streamer sends one file at a time, each to its
  // end, and whoever opens another one waits for that; so each is opened and read to its end by one thread
  // that waits for nobody meanwhile.
  Mutex stream;
  // Why a lane gave its files up before their end. The streamer ends of it, so nobody asks it for more: the
  // lanes that come later fail with the same.
  std::optional<Error> stream_failure SLUICE_GUARDED_BY(stream);
  // Dump: set by whoever wants no more of it. Lanes of all jobs end at their next chunk, with ECANCELED.
  std::atomic<bool> stopped{false};
};

// How long a job that is stopped is waited for. What a disk has been given cannot be taken back, and one that
// is slow or hangs must not keep the queues of the processes from running again.
inline constexpr auto kStopPatience = std::chrono::milliseconds(100);

// What became of one GPU's contents. Times in nanoseconds of the world's clock: from the start of the lane to
// its end, durable.
struct GpuOutcome {
  std::uint32_t gpu_id = 0;
  std::uint64_t bos = 0;
  std::uint64_t bytes = 0;  // of BO contents
  std::uint64_t zero_bytes = 0;
  std::uint64_t io_bytes = 0;      // moved to or from the file
  std::uint64_t pinned_bytes = 0;  // staging registered with GPU and ring
  bool direct_io = false;
  bool verified = false;  // restore: every block was compared with its sum
  std::uint64_t began_ns = 0;
  std::uint64_t ended_ns = 0;
  PipelineStats stats;
  Trace trace;  // where the configuration asks for one

  double seconds() const { return static_cast<double>(ended_ns - began_ns) / 1e9; }
};

class ContentsJob {
 public:
  // Start one lane per entry of `gpus`, each of which has BOs. `image_dir` and `shared` are borrowed until
  // the job is destroyed. `dump_id` ties the sidecars to the metadata image: written on dump, compared on
  // restore (all zero: the image has none). `id` is CRIU's of the open file: it names the images. The
  // lanes of a restore wait for begin(). Errors: EAGAIN (threads), what opening or reading a sidecar gave. On
  // error nothing is running.
  static Result<std::unique_ptr<ContentsJob>> dump(int image_dir, std::vector<GpuContents> gpus,
                                                   const Config& config, const DumpId& dump_id,
                                                   SharedByJobs& shared);
  static Result<std::unique_ptr<ContentsJob>> restore(int image_dir, int id, std::vector<GpuContents> gpus,
                                                      const Config& config, const DumpId& dump_id,
                                                      SharedByJobs& shared);
  ~ContentsJob();  // cancels and joins

  // Restore: from here on the BOs are this job's to fill. Allocates nothing and cannot fail.
  void begin();

  // After begin(): waits for all lanes; the first error of any lane wins and makes the others stop. `report`
  // (may be null) is called about once a second with a line of progress, from the calling thread. Once
  // SharedByJobs::stopped is set it waits for kStopPatience at most: then ECANCELED, and lanes that still
  // run are the destructor's to join.
  Result<void> wait(const std::function<void(const std::string&)>& report);

  // How many it has, until wait().
  std::size_t lanes() const { return loads_.size(); }

  // Dump: the names of all pages files and sidecars under CRIU's file id.
  std::vector<std::string> image_names(int id) const;

  // Dump, after wait() succeeded: writes the sidecars and renames the pages files to their names.
  Result<void> commit(int id);

  // Lanes that run stop at their next chunk with ECANCELED; those that wait for begin() end at once.
  void cancel();

  // After wait():
  const std::vector<GpuOutcome>& outcomes() const { return outcomes_; }
  // What the lanes had to say; to be logged by whoever may log. Empties the list.
  LogLines take_log_lines();

 private:
  struct Load;
  struct Store;
  ContentsJob(Direction direction, int image_dir, int id, const Config& config, const DumpId& dump_id,
              SharedByJobs& shared);
  Result<void> start(std::vector<GpuContents> gpus);
  Result<std::unique_ptr<Load>> make_load(GpuContents gpu);
  Result<void> take_sums(const PagesSet& pages, const ImageLayout& layout, Sidecar& sidecar, bool& has_sums);
  void run_and_report(Load& load) noexcept;
  Result<void> run_lane(Load& load);
  Result<void> carry(Load& load);
  Result<Stage*> own_copy(Load& load, Lane& lane, LaneGpu& gpu);
  Result<Stage*> own_checksum(Load& load, Lane& lane);
  Result<Store> own_store(Load& load, Lane& lane);
  Result<void> look_at_vram(const Load& load, LaneGpu& gpu);
  bool is_stopped() const { return cancelled_ || shared_.stopped; }
  void note(Level level, std::string text);

  Direction direction_;
  int image_dir_;
  int id_;  // restore only
  Config config_;
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
