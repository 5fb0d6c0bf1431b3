// SPDX-License-Identifier: MIT
// Lanes as the plugin runs them (pipeline/lane.h), with any copy engine and any store, each in its own
// thread. The whole run is timed, from creating the threads to the durable directory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "engine/copy_engine.h"
#include "measure/sample.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/checksum/content_match.h"
#include "pipeline/extents/extent_reader.h"
#include "pipeline/pipeline.h"
#include "pipeline/store/file_runs.h"

namespace sluice::bench {

// The plugin's defaults.
inline constexpr std::uint64_t kChunkBytes = 4 * kMiB;
inline constexpr std::uint64_t kStagingBytes = 64 * kMiB;
inline constexpr std::uint32_t kSlots = kStagingBytes / kChunkBytes;

// Makes a store stage other than a file, for the file of `layout`.
using MakeStore = std::function<Result<std::unique_ptr<Stage>>(const ImageLayout& layout, Reactor& reactor)>;

struct LanePlan {
  CopyEngine* engine = nullptr;  // borrowed
  Direction direction = Direction::Dump;
  std::uint64_t chunk_bytes = kChunkBytes;
  std::uint64_t staging_bytes = kStagingBytes;  // see sluice::LaneOptions
  bool checksum = true;
  unsigned checksum_workers = 0;  // additional threads that hash; 0: the lane does
  // With checksum: made on dump, by its method; compared on restore. Null: made and discarded.
  SumTable* sums = nullptr;
  MakeStore make_store;  // empty: a file, described by the following
  int directory = -1;    // borrowed descriptor
  std::string name;
  FileOptions file;
  // Dump with a checksum: an older dump of the same BOs, whose units are not written again. Borrowed.
  const KnownFiles* parent = nullptr;
  // Dump with a checksum, one file: the earlier lanes of the run may have the same contents, BO by BO.
  // Extents are shared in multiples of this many bytes; 0: every lane writes its own.
  std::uint64_t replica_block_bytes = 0;
  std::uint64_t bytes_per_second = 0;  // of the copies, at most; 0: as fast as they go
  // Restore: where the file's bytes are, instead of `name`. Borrowed.
  const ExtentMap* extents = nullptr;
  SharedReaders* readers = nullptr;  // with extents: of lanes that read the same files; borrowed
  std::function<void()>
      begin;  // may be empty; called in the lane's thread when everything is made, before the first chunk
  ProgressFn progress;  // may be empty; called in the lane's thread
};

// When a lane reached which point, in seconds since the run's begin.
struct LaneTimes {
  double began = 0;  // its thread
  double made = 0;   // staging memory, ring and their registration
  double ready = 0;  // all stages: the first chunk is next
  double done = 0;   // the last chunk, its file synced
  double ended = 0;  // its file has its name, everything is destroyed
};

struct LaneResult {
  PipelineStats stats;
  LaneTimes times;
  KnownRuns parent_runs;            // for a dump with a parent
  KnownRuns replica_runs;           // what files of other lanes have, too
  std::uint64_t parent_bytes = 0;   // not written, because the parent has them
  std::uint64_t replica_bytes = 0;  // not written, because another lane has them
};

struct RunResult {
  Sample sample;  // bytes: file bytes of all lanes
  std::vector<LaneResult> lanes;
};

// Runs all at once. The time includes committing a dump's files and syncing their directory. Returns the
// first error of any lane when all have ended.
Result<RunResult> run_lanes(std::span<const LanePlan> plans);

}  // namespace sluice::bench
