// SPDX-License-Identifier: MIT
#include "scenario/replica_lanes.h"

#include <cerrno>
#include <filesystem>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "images/chain/chain.h"
#include "images/sums.h"
#include "lane/memory_store.h"
#include "measure/page_cache.h"
#include "measure/process.h"
#include "pipeline/slot_workers.h"
#include "scenario/dump_chain.h"
#include "scenario/shape.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kAnyBlock = 4 * kKiB;  // where nothing is shared in the end

// A secret for all lanes, as a dump has.
SumMethod secret() {
  SumSecret made;
  for (std::size_t i = 0; i < made.bytes.size(); ++i) made.bytes[i] = static_cast<std::uint8_t>(i * 37 + 11);
  return SumMethod(made);
}

std::string name_of(std::size_t lane) {
  return "gpu-" + std::to_string(lane);
}

}  // namespace

Result<ReplicaLanes> ReplicaLanes::make(std::size_t lanes, std::uint64_t bytes, Likeness likeness,
                                        const MakeEngine& make_engine) {
  ReplicaLanes made;
  for (std::size_t i = 0; i < lanes; ++i) {
    // Some large BOs and some small ones, as a model has.
    Contents contents{{bytes / 2, bytes / 4, bytes / 8, 64 * kKiB, 4 * kKiB}};
    if (likeness == Likeness::Nothing) contents.seed = i + 1;
    if (likeness == Likeness::Shifted) contents.skipped_bytes = (lanes - i) * kSumBlockBytes;
    const auto half = some_ranges(contents.total_bytes(), 0.5, kMiB, 1);
    SLUICE_TRY_ASSIGN(std::unique_ptr<CopyEngine> engine, make_engine(std::move(contents), i));
    if (likeness == Likeness::Half) SLUICE_TRY(engine->change(half, i));
    made.engines_.push_back(std::move(engine));
  }
  made.sums_.resize(lanes);
  made.runs_.resize(lanes);
  for (SumTable& sums : made.sums_) sums.method = secret();
  return made;
}

std::vector<LanePlan> ReplicaLanes::plans_of(std::size_t lanes, std::uint64_t block_bytes) {
  std::vector<LanePlan> plans(lanes);
  for (std::size_t i = 0; i < lanes; ++i) {
    plans[i].engine = engines_[i].get();
    plans[i].sums = &sums_[i];
    plans[i].name = name_of(i);
    plans[i].staging_bytes = standard_staging_bytes(lanes);
    plans[i].replica_block_bytes = block_bytes;
    plans[i].checksum_workers = spare_workers(lanes);
  }
  return plans;
}

Result<Sample> ReplicaLanes::dump(const Place& place, std::size_t lanes, std::uint64_t block_bytes) {
  FairShare disk;
  std::vector<LanePlan> plans = plans_of(lanes, block_bytes);
  for (LanePlan& plan : plans) {
    plan.directory = place.fd();
    plan.file.share = &disk;
    std::filesystem::remove(place.file(plan.name));
  }
  place.settle();
  SLUICE_TRY_ASSIGN(RunResult run, run_lanes(plans));
  for (std::size_t i = 0; i < lanes; ++i) runs_[i] = std::move(run.lanes[i].replica_runs);
  return run.sample;
}

Result<Sample> ReplicaLanes::dump_nowhere(std::size_t lanes, bool shares, std::uint64_t& written_bytes) {
  std::vector<LanePlan> plans = plans_of(lanes, shares ? kAnyBlock : 0);
  std::vector<std::uint64_t> written(lanes);
  for (std::size_t i = 0; i < lanes; ++i) plans[i].make_store = counting_store(written[i]);
  SLUICE_TRY_ASSIGN(const RunResult run, run_lanes(plans));
  written_bytes = std::accumulate(written.begin(), written.end(), std::uint64_t{0});
  return run.sample;
}

Result<std::vector<ExtentMap>> ReplicaLanes::extents_of(const Place& place, std::size_t lanes) const {
  std::set<std::string> shared;
  for (std::size_t i = 0; i < lanes; ++i) shared.insert(runs_[i].files.begin(), runs_[i].files.end());
  std::vector<ExtentMap> all;
  if (shared.empty()) return all;
  SLUICE_TRY_ASSIGN(const ImageLayout layout,
                    ImageLayout::make(engines_.front()->contents().bo_bytes, kChunkBytes));
  const Chain complete;  // no file needs another
  for (std::size_t i = 0; i < lanes; ++i) {
    Sidecar sidecar;
    sidecar.tables = {sums_[i]};
    sidecar.pages_files = {name_of(i)};
    sidecar.replicas = {runs_[i]};
    SLUICE_TRY_ASSIGN(std::vector<ExtentMap> maps, complete.resolve(place.fd(), {}, layout, sidecar, shared));
    all.push_back(std::move(maps.front()));
  }
  return all;
}

Result<Sample> ReplicaLanes::restore(const Place& place, std::size_t lanes, From from) {
  std::vector<LanePlan> plans = plans_of(lanes, 0);
  std::vector<ExtentMap> extents;
  if (from != From::Own) {
    SLUICE_TRY_ASSIGN(extents, extents_of(place, lanes));
  }
  SharedReaders readers;
  for (std::size_t i = 0; i < extents.size(); ++i) plans[i].extents = &extents[i];
  for (LanePlan& plan : plans) {
    plan.direction = Direction::Restore;
    plan.directory = place.fd();
    if (from == From::SharedReader) plan.readers = &readers;
    SLUICE_TRY(plan.engine->scribble());
    SLUICE_TRY(drop_cached(place.file(plan.name)));
  }
  touch_free_memory(kTouchBytes);
  SLUICE_TRY_ASSIGN(const RunResult run, run_lanes(plans));
  for (const LanePlan& plan : plans) {
    SLUICE_TRY_ASSIGN(const bool intact, plan.engine->intact());
    if (!intact) return make_error(EBADMSG, "the restored contents are not what was dumped");
  }
  return run.sample;
}

Result<Sample> ReplicaLanes::restore_from_memory(std::size_t lanes, bool handed_on) {
  std::vector<LanePlan> plans = plans_of(lanes, 0);
  SLUICE_TRY_ASSIGN(const ImageLayout layout,
                    ImageLayout::make(engines_.front()->contents().bo_bytes, kChunkBytes));
  SumTable sums = sums_of_memory(layout, secret());
  for (LanePlan& plan : plans) {
    plan.direction = Direction::Restore;
    plan.sums = &sums;
    plan.make_store = memory_store(plan.direction, handed_on);
  }
  touch_free_memory(kTouchBytes);
  SLUICE_TRY_ASSIGN(const RunResult run, run_lanes(plans));
  return run.sample;
}

}  // namespace sluice::bench
