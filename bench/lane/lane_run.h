// SPDX-License-Identifier: MIT
// Lanes as the plugin runs them (pipeline/lane.h), over any copy engine and any store, each in its own
// thread. What is timed is the whole of it, from the making of the threads to the durable directory.
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
#include "pipeline/pipeline.h"
#include "pipeline/store/file_store.h"

namespace sluice::bench {

// The plugin's defaults.
inline constexpr std::uint64_t kChunkBytes = 4 * kMiB;
inline constexpr std::uint64_t kStagingBytes = 64 * kMiB;
inline constexpr std::uint32_t kSlots = kStagingBytes / kChunkBytes;

// Makes a store stage that is no file, for what would be `layout`'s.
using MakeStore = std::function<Result<std::unique_ptr<Stage>>(const ImageLayout& layout, Reactor& reactor)>;

struct LanePlan {
  CopyEngine* engine = nullptr;  // borrowed
  Direction direction = Direction::Dump;
  std::uint64_t chunk_bytes = kChunkBytes;
  std::uint64_t staging_bytes = kStagingBytes;  // as sluice::LaneOptions
  bool checksum = true;
  unsigned checksum_workers = 0;  // threads beside the lane's that hash; 0: the lane does
  // With checksum: made on dump, by the method that it has; compared on restore. Null: made and forgotten.
  SumTable* sums = nullptr;
  MakeStore make_store;  // empty: a file, as the following say
  int directory = -1;    // borrowed descriptor
  std::string name;
  FileOptions file;
  std::function<void()> begin;  // may be empty; called in the lane's thread when all is made, before the
                                // first chunk
  ProgressFn progress;          // may be empty; called in the lane's thread
};

struct LaneResult {
  PipelineStats stats;
  double seconds = 0;  // from the lane's start to its end
};

struct RunResult {
  Sample sample;  // bytes: file bytes of all lanes
  std::vector<LaneResult> lanes;
};

// Runs all at once. Dumps to files are committed and their directory is synced inside the time. The first
// error of any lane is returned when all have ended.
Result<RunResult> run_lanes(std::span<const LanePlan> plans);

}  // namespace sluice::bench
