// SPDX-License-Identifier: MIT
#include "lane/lane_run.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "measure/clock.h"
#include "measure/process.h"
#include "pipeline/lane.h"
#include "pipeline/lane_thread.h"
#include "pipeline/store/file_set.h"

namespace sluice::bench {
namespace {

double dma_cpu_seconds(std::span<const LanePlan> plans) {
  double sum = 0;
  for (const LanePlan& plan : plans) sum += plan.engine->dma_cpu_seconds();
  return sum;
}

Result<void> run_lane(const LanePlan& plan, const ImageLayout& layout, LaneResult& result) {
  const auto begin = Clock::now();
  SumTable forgotten;
  SumTable* sums = plan.sums;
  if (sums == nullptr && plan.direction == Direction::Dump) sums = &forgotten;
  if (sums != nullptr && plan.direction == Direction::Dump)
    *sums = SumTable::sized(layout.file_bytes(), kSumBlockBytes, sums->method);
  std::unique_ptr<FileSetSink> sink;  // of a dump to a file; outlives the lane, as the plugin's does
  SLUICE_TRY_ASSIGN(const std::unique_ptr<Lane> lane,
                    Lane::make(layout, {plan.staging_bytes, plan.engine->numa_node()}));
  SLUICE_TRY_ASSIGN(
      std::unique_ptr<Stage> copies,
      plan.engine->make_stage(plan.direction, layout, lane->arena(), lane->slots(), lane->reactor()));
  Stage& copy = lane->own(std::move(copies));
  Stage* checksum = nullptr;
  // Without a checksum there is nothing to look at the bytes but the search for zeros.
  if (plan.checksum || (plan.file.holes && !plan.make_store)) {
    SLUICE_TRY_ASSIGN(std::unique_ptr<Stage> sums_stage,
                      make_checksum(*lane, plan.direction, {sums, plan.checksum && sums != nullptr ? 1U : 0U},
                                    ChecksumOptions{plan.file.holes}, nullptr, plan.checksum_workers));
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
    SLUICE_TRY_ASSIGN(std::unique_ptr<FileSetSource> source,
                      FileSetSource::open(plan.directory, {plan.name}, layout, lane->reactor(), file));
    store = &lane->own(std::move(source));
  }
  if (plan.begin) plan.begin();
  SLUICE_TRY_ASSIGN(result.stats,
                    lane->run(Route{&copy, checksum, store}.towards(plan.direction), plan.progress));
  if (sink) SLUICE_TRY(sink->commit());
  result.seconds = seconds_since(begin);
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
      return run_lane(plans[i], layouts[i], run.lanes[i]);
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
