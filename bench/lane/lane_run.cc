// SPDX-License-Identifier: MIT
#include "lane/lane_run.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "engine/paced_stage.h"
#include "measure/clock.h"
#include "measure/process.h"
#include "pipeline/chunk_walk.h"
#include "pipeline/lane.h"
#include "pipeline/lane_thread.h"
#include "pipeline/late_stage.h"
#include "pipeline/store/extent_source.h"
#include "pipeline/store/file_set.h"

namespace sluice::bench {
namespace {

double dma_cpu_seconds(std::span<const LanePlan> plans) {
  double sum = 0;
  for (const LanePlan& plan : plans) sum += plan.engine->dma_cpu_seconds();
  return sum;
}

// Each BO is the parent's of the same number.
std::vector<ParentBo> bos_of(const ParentFiles& parent) {
  std::vector<ParentBo> bos;
  for (std::uint32_t bo = 0; bo < parent.layout.bo_count(); ++bo) bos.push_back({&parent, bo});
  return bos;
}

Result<std::unique_ptr<FileSet>> make_source(const LanePlan& plan, const ImageLayout& layout,
                                             Reactor& reactor, const FileOptions& file) {
  if (plan.extents != nullptr)
    return std::unique_ptr<FileSet>(
        std::make_unique<ExtentSource>(std::vector{*plan.extents}, layout, reactor, file));
  SLUICE_TRY_ASSIGN(std::unique_ptr<FileSet> source,
                    FileSetSource::open(plan.directory, {plan.name}, layout, reactor, file));
  return source;
}

// Like the plugin: on restore, when the first chunk is read.
Result<Stage*> own_copy(const LanePlan& plan, const ImageLayout& layout, Lane& lane) {
  const auto make = [&plan, &layout, &lane] {
    return plan.engine->make_stage(plan.direction, layout, lane.arena(), lane.slots(), lane.reactor());
  };
  if (plan.direction == Direction::Restore) return &lane.own(std::make_unique<LateStage>("copy", make));
  SLUICE_TRY_ASSIGN(std::unique_ptr<Stage> copy, make());
  if (plan.bytes_per_second != 0) {
    SLUICE_TRY_ASSIGN(
        copy, PacedStage::make(std::move(copy), plan.bytes_per_second, lane.slot_count(), lane.reactor()));
  }
  return &lane.own(std::move(copy));
}

Result<void> run_lane(const LanePlan& plan, const ImageLayout& layout, Clock::time_point begin,
                      LaneResult& result) {
  result.times.began = seconds_since(begin);
  SumTable forgotten;
  SumTable* sums = plan.sums;
  if (plan.checksum && plan.direction == Direction::Dump) {
    if (sums == nullptr) sums = &forgotten;
    *sums = std::move(unit_tables(layout, kSumBlockBytes, sums->method).front());
  }
  std::optional<ParentMatch> match;
  if (plan.parent != nullptr) match.emplace(layout, std::span(sums, 1), bos_of(*plan.parent));
  std::unique_ptr<FileSetSink> sink;  // for a dump to a file; outlives the lane, like the plugin's
  SLUICE_TRY_ASSIGN(const std::unique_ptr<Lane> lane,
                    Lane::make(layout, {plan.staging_bytes, plan.engine->numa_node(),
                                        match ? cursors_for_changes(layout.chunk_count()) : 1}));
  result.times.made = seconds_since(begin);
  SLUICE_TRY_ASSIGN(Stage* const copy, own_copy(plan, layout, *lane));
  Stage* checksum = nullptr;
  // Without checksums only the search for zeros reads the bytes.
  if (plan.checksum || (plan.file.holes && !plan.make_store)) {
    SLUICE_TRY_ASSIGN(std::unique_ptr<Stage> sums_stage,
                      make_checksum(*lane, plan.direction, {sums, plan.checksum && sums != nullptr ? 1U : 0U},
                                    ChecksumOptions{.detect_zero_units = plan.file.holes,
                                                    .parent = match ? &*match : nullptr},
                                    nullptr, plan.checksum_workers));
    checksum = &lane->own(std::move(sums_stage));
  }
  FileOptions file = plan.file;
  file.most_on_disk = most_on_disk(lane->slot_count());
  Stage* store = nullptr;
  if (plan.make_store) {
    SLUICE_TRY_ASSIGN(std::unique_ptr<Stage> other, plan.make_store(layout, lane->reactor()));
    store = &lane->own(std::move(other));
  } else if (plan.direction == Direction::Dump) {
    sink =
        std::make_unique<FileSetSink>(plan.directory, std::vector{plan.name}, layout, lane->reactor(), file);
    store = sink.get();
  } else {
    SLUICE_TRY_ASSIGN(std::unique_ptr<FileSet> source, make_source(plan, layout, lane->reactor(), file));
    store = &lane->own(std::move(source));
  }
  result.times.ready = seconds_since(begin);
  if (plan.begin) plan.begin();
  SLUICE_TRY_ASSIGN(result.stats,
                    lane->run(Route{copy, checksum, store}.towards(plan.direction), plan.progress));
  result.times.done = seconds_since(begin);
  if (sink) SLUICE_TRY(sink->commit());
  if (match) {
    result.parent_runs = match->runs(0);
    result.parent_bytes = match->bytes();
  }
  return {};
}

}  // namespace

Result<RunResult> run_lanes(std::span<const LanePlan> plans) {
  std::vector<ImageLayout> layouts;
  for (const LanePlan& plan : plans) {
    SLUICE_TRY_ASSIGN(ImageLayout layout,
                      ImageLayout::make(plan.engine->contents().bo_bytes, plan.chunk_bytes));
    layouts.push_back(std::move(layout));
  }
  RunResult run;
  run.lanes.resize(plans.size());
  const double cpu = process_cpu_seconds();
  const double dma_cpu = dma_cpu_seconds(plans);
  const auto begin = Clock::now();
  std::vector<LaneThread> threads;
  Result<void> outcome;
  for (std::size_t i = 0; i < plans.size() && outcome; ++i) {
    auto thread = LaneThread::start("lane-" + std::to_string(i), [&, i]() -> Result<void> {
      Result<void> ended = run_lane(plans[i], layouts[i], begin, run.lanes[i]);
      run.lanes[i].times.ended = seconds_since(begin);
      return ended;
    });
    if (thread) {
      threads.push_back(std::move(*thread));
    } else {
      outcome = std::move(thread).error();
    }
  }
  for (LaneThread& thread : threads) {
    Result<void> ended = thread.join();
    if (outcome && !ended) outcome = std::move(ended);
  }
  if (!outcome) return std::move(outcome).error();
  for (const LanePlan& plan : plans) {
    if (plan.direction == Direction::Dump && !plan.make_store && plan.file.sync &&
        ::fsync(plan.directory) != 0)
      return make_error(errno, "sync the directory");
  }
  run.sample.seconds = seconds_since(begin);
  run.sample.dma_cpu_seconds = dma_cpu_seconds(plans) - dma_cpu;
  run.sample.cpu_seconds = process_cpu_seconds() - cpu - run.sample.dma_cpu_seconds;
  for (const ImageLayout& layout : layouts) run.sample.bytes += layout.file_bytes();
  return run;
}

}  // namespace sluice::bench
