// SPDX-License-Identifier: MIT
#include "lane/lane_run.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>

#include "measure/clock.h"
#include "measure/process.h"
#include "pipeline/arena.h"
#include "pipeline/lane.h"
#include "pipeline/uring_reactor.h"

namespace sluice::bench {
namespace {

double dma_cpu_seconds(std::span<const LanePlan> plans) {
  double sum = 0;
  for (const LanePlan& plan : plans) sum += plan.engine->dma_cpu_seconds();
  return sum;
}

Result<void> run_lane(const LanePlan& plan, const ImageLayout& layout, LaneResult& result) {
  const auto begin = Clock::now();
  const auto slot_count = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(plan.staging_bytes / plan.chunk_bytes, layout.chunk_count()));
  SLUICE_TRY_ASSIGN(StagingArena arena,
                    StagingArena::make(layout.chunk_bytes(), slot_count, plan.engine->numa_node()));
  std::string note;
  SLUICE_TRY_ASSIGN(const std::unique_ptr<Reactor> reactor,
                    make_reactor(slot_count * static_cast<unsigned>(kOpsPerSlot), arena.bytes(), note));
  std::vector<Slot> slots = slots_of(arena);
  SLUICE_TRY_ASSIGN(const std::unique_ptr<Stage> copy,
                    plan.engine->make_stage(plan.direction, layout, arena, slots, *reactor));
  SumTable forgotten;
  SumTable* sums = plan.sums;
  if (sums == nullptr && plan.direction == Direction::Dump) sums = &forgotten;
  if (sums != nullptr && plan.direction == Direction::Dump)
    *sums = SumTable::sized(layout.file_bytes(), kSumBlockBytes, sums->method);
  std::unique_ptr<SlotWorkers> workers;
  if (plan.checksum_workers > 0) {
    SLUICE_TRY_ASSIGN(workers, SlotWorkers::start("lane-sum", plan.checksum_workers, slot_count));
  }
  ChecksumStage checksum(plan.direction, layout, *reactor, {sums, plan.checksum && sums != nullptr ? 1U : 0U},
                         ChecksumOptions{plan.file.holes}, nullptr, std::move(workers));

  FileOptions file = plan.file;
  file.most_on_disk = most_on_disk(slot_count);
  std::unique_ptr<Stage> other_store;
  std::unique_ptr<FileSink> sink;
  std::unique_ptr<FileSource> source;
  Stage* store = nullptr;
  if (plan.make_store) {
    SLUICE_TRY_ASSIGN(other_store, plan.make_store(layout, *reactor));
    store = other_store.get();
  } else if (plan.direction == Direction::Dump) {
    SLUICE_TRY_ASSIGN(sink, FileSink::create(plan.directory, plan.name, layout, *reactor, file));
    store = sink.get();
  } else {
    SLUICE_TRY_ASSIGN(source, FileSource::open(plan.directory, plan.name, layout, *reactor, file));
    store = source.get();
  }
  std::vector<Stage*> route = {copy.get()};
  // Without a checksum there is nothing to look at the bytes but the search for zeros.
  if (plan.checksum || (plan.file.holes && !plan.make_store)) route.push_back(&checksum);
  route.push_back(store);
  if (plan.direction == Direction::Restore) std::reverse(route.begin(), route.end());

  Pipeline pipeline(layout, slots, route, *reactor);
  if (plan.begin) plan.begin();
  SLUICE_TRY_ASSIGN(result.stats, pipeline.run(plan.progress));
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
