// SPDX-License-Identifier: MIT
// Carries the planned contents into pages files, while the host does other work. Files have working names
// until the host has named the open file (commit.h).
//
// As many lanes flow at once as the staging memory has room for. The rest flows when others have ended, at
// the latest when CRIU asks for it. Without SLUICE_PARALLEL, and one way, contents begin when CRIU asks for
// their file.
//
// Main thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/contents/contents_job.h"
#include "plugin/contents/stats.h"
#include "plugin/dump/basis/dump_basis.h"
#include "plugin/dump/carry/image_set.h"
#include "plugin/dump/plan/dump_plan.h"

namespace sluice::plugin {

class Carrier {
 public:
  struct Totals {
    std::uint64_t bytes = 0;          // of BOs
    std::uint64_t io_bytes = 0;       // written
    std::uint64_t skipped_bytes = 0;  // of BOs that a pre-dump has not
  };

  // Borrowed.
  Carrier(const DumpBasis& basis, SharedByJobs& shared, ImageSet& images)
      : basis_(basis), shared_(shared), images_(images) {}

  // Once, before all below: the lanes of the plan's files, by their numbers there.
  void load(const std::vector<PlannedFile>& files, std::vector<std::vector<LaneContents>> lanes);

  // Starts what there is room for. `wanted`: the file that CRIU asks for, under `id`; it is started in any
  // case. Errors: ECANCELED once the dump is stopped; those of starting lanes.
  Result<void> start(std::optional<std::size_t> wanted, int id = 0);
  bool is_started(std::size_t file) const { return files_[file].started; }
  // Whether all lanes of the file end within `ns`. REQUIRES: is_started(), not
  // joined.
  bool ends_within(std::size_t file, std::uint64_t ns) { return files_[file].job->ends_within(ns); }

  // Joins the file's lanes and renames its pages files for `id`. REQUIRES: is_started().
  Result<void> join(std::size_t file, int id);
  // After join(): see ContentsJob::replica_files().
  std::vector<std::string> replica_files(std::size_t file) const { return files_[file].job->replica_files(); }
  // The last step, after the metadata are written: adds to the statistics.
  void note_stats(std::size_t file, int id);

  // Ends the lanes that still flow.
  void drop() { files_.clear(); }

  const Totals& totals() const { return totals_; }  // of files in the statistics
  // sluice-stats-<dump|predump>-<id>.json of all of them. `frozen_ns`: how long queues were stopped. Call it
  // when they run again, so they do not wait for it.
  void write_stats(std::uint64_t frozen_ns);

 private:
  struct File {
    bool flows = false;  // false: an alias
    bool started = false;
    FileTimes times;
    std::vector<LaneContents> waiting;
    std::vector<std::uint32_t> minors;  // of the started lanes
    std::unique_ptr<ContentsJob> job;   // from its start to note_stats()
  };
  struct Stats {
    int id = 0;  // CRIU's
    FileTimes times;
    std::vector<GpuOutcome> gpus;
  };

  Result<void> start_file(std::size_t number, std::optional<int> id);
  bool has_room(const File& file) const;
  void share_staging(const std::vector<std::size_t>& sharers);
  std::vector<std::string> take_working_names(std::size_t number, const PagesSet& pages);

  const DumpBasis& basis_;
  SharedByJobs& shared_;
  ImageSet& images_;
  std::vector<File> files_;
  std::map<std::uint32_t, std::size_t> lanes_;  // started and not joined, by render minor
  bool all_share_ = false;                      // contents of the whole tree share the staging memory
  Totals totals_;
  std::vector<Stats> stats_;
};

}  // namespace sluice::plugin
