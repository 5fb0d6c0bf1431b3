// SPDX-License-Identifier: MIT
#include "lane/lane_run.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "engine/paced_stage.h"
#include "measure/clock.h"
#include "measure/process.h"
#include "pipeline/chunk_walk.h"
#include "pipeline/extents/extent_cloner.h"
#include "pipeline/extents/extent_source.h"
#include "pipeline/lane.h"
#include "pipeline/lane_thread.h"
#include "pipeline/late_stage.h"
#include "pipeline/replica/replica_gate.h"
#include "pipeline/store/file_set.h"

namespace sluice::bench {
namespace {

double dma_cpu_seconds(std::span<const LanePlan> plans) {
  double sum = 0;
  for (const LanePlan& plan : plans) sum += plan.engine->dma_cpu_seconds();
  return sum;
}

// Each BO is the parent's of the same number.
std::vector<KnownBo> bos_of(const KnownFiles& parent) {
  std::vector<KnownBo> bos;
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

// A lane of a run whose lanes share contents, as others see it; ends with the run.
struct Sharing {
  std::shared_ptr<KnownFiles::Tables> tables;
  std::shared_ptr<LeaderLane> lane;  // null: the plan shares nothing
};

// Each lane follows all before it.
std::vector<Leader> leaders_of(std::span<const Sharing> sharing, std::size_t number,
                               const ImageLayout& layout) {
  std::vector<Leader> leaders;
  for (std::size_t other = number; other-- > 0 && leaders.size() < kMostLeaders;) {
    Leader leader{sharing[other].lane, {}};
    for (std::uint32_t bo = 0; bo < layout.bo_count(); ++bo) leader.bos.push_back(bo);
    leaders.push_back(std::move(leader));
  }
  return leaders;
}

// As the plugin's: the followers may open the file, which has no name yet.
Result<void> tell_followers(const LanePlan& plan, const ImageLayout& layout, const KnownRuns& replicas,
                            LeaderLane& lane) {
  UniqueFd file;
  if (!plan.make_store) {
    file.reset(::openat(plan.directory, temporary_name_of(plan.name).c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return make_error(errno, "open " + plan.name);
  }
  const UnitIndex units(layout, kSumBlockBytes);
  lane.end(LeaderLane::Complete{std::move(file), {}, RunIndex(layout, units, 0, replicas)});
  return {};
}

Result<void> run_lane(const LanePlan& plan, const ImageLayout& layout, std::span<const Sharing> sharing,
                      std::size_t number, Clock::time_point begin, LaneResult& result) {
  LeaderLane* const leads = sharing[number].lane.get();
  result.times.began = seconds_since(begin);
  SumTable forgotten;
  SumTable* sums = plan.sums;
  if (plan.checksum && plan.direction == Direction::Dump) {
    if (sums == nullptr) sums = &forgotten;
    if (leads != nullptr) {
      sums = &sharing[number].tables->front();
    } else {
      *sums = std::move(unit_tables(layout, kSumBlockBytes, sums->method).front());
    }
  }
  std::optional<ContentMatch> match;
  if (plan.parent != nullptr) match.emplace(layout, std::span(sums, 1), bos_of(*plan.parent));
  if (leads != nullptr && number > 0)
    match.emplace(layout, std::span(sums, 1), std::vector<KnownBo>(layout.bo_count()),
                  plan.replica_block_bytes, leaders_of(sharing, number, layout));
  std::shared_ptr<SharedReader> reader;  // outlives the lane
  std::unique_ptr<FileSetSink> sink;     // for a dump to a file; outlives the lane, like the plugin's
  SLUICE_TRY_ASSIGN(
      const std::unique_ptr<Lane> lane,
      Lane::make(layout, {plan.staging_bytes, plan.engine->numa_node(),
                          plan.parent != nullptr ? cursors_for_changes(layout.chunk_count()) : 1}));
  result.times.made = seconds_since(begin);
  SLUICE_TRY_ASSIGN(Stage* const copy, own_copy(plan, layout, *lane));
  Stage* checksum = nullptr;
  // Without checksums only the search for zeros reads the bytes.
  if (plan.checksum || (plan.file.holes && !plan.make_store)) {
    SLUICE_TRY_ASSIGN(std::unique_ptr<Stage> sums_stage,
                      make_checksum(*lane, plan.direction, {sums, plan.checksum && sums != nullptr ? 1U : 0U},
                                    ChecksumOptions{.detect_zero_units = plan.file.holes,
                                                    .match = match ? &*match : nullptr,
                                                    .leads = leads},
                                    nullptr, plan.checksum_workers));
    checksum = &lane->own(std::move(sums_stage));
  }
  FileOptions file = plan.file;
  std::unique_ptr<ExtentCloner> cloner;
  Stage* gate = nullptr;
  if (match && match->follows()) {
    SLUICE_TRY_ASSIGN(
        cloner,
        ExtentCloner::start({.runs = [&match](std::uint32_t of) { return match->clones(of); },
                             .ready = [&match] { return match->wait_for_leaders([] { return false; }); },
                             .sums = {&layout, std::span(sums, 1)}},
                            *lane));
    file.cloner = cloner.get();
    SLUICE_TRY_ASSIGN(std::unique_ptr<ReplicaGate> its, ReplicaGate::make(*match, lane->reactor()));
    gate = &lane->own(std::move(its));
  }
  file.most_on_disk = most_on_disk(lane->slot_count());
  if (plan.readers != nullptr)
    reader = plan.readers->get(LaneWorld::real(), plan.chunk_bytes,
                               SharedReaders::bytes_for(sharing.size(), plan.staging_bytes));
  file.reader = reader.get();
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
                    lane->run(Route{gate, copy, checksum, store}.towards(plan.direction), plan.progress));
  if (match) {
    SLUICE_TRY(match->wait_for_leaders([] { return false; }));
    FoundRuns runs = match->runs(0);
    result.parent_runs = std::move(runs.parents);
    result.replica_runs = std::move(runs.replicas);
  }
  if (leads != nullptr) SLUICE_TRY(tell_followers(plan, layout, result.replica_runs, *leads));
  result.times.done = seconds_since(begin);
  if (sink) SLUICE_TRY(sink->commit());
  if (match) {
    result.parent_bytes = match->parent_bytes();
    result.replica_bytes = match->replica_bytes();
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
  std::vector<Sharing> sharing(plans.size());
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].replica_block_bytes == 0) continue;
    const SumMethod method = plans[i].sums != nullptr ? plans[i].sums->method : SumMethod();
    sharing[i].tables = std::make_shared<KnownFiles::Tables>(unit_tables(layouts[i], kSumBlockBytes, method));
    sharing[i].lane =
        std::make_shared<LeaderLane>(layouts[i], sharing[i].tables, plans[i].name, LaneWorld::real());
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
      Result<void> ended = run_lane(plans[i], layouts[i], sharing, i, begin, run.lanes[i]);
      if (!ended && sharing[i].lane) sharing[i].lane->end(std::nullopt);
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
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (sharing[i].lane && plans[i].sums != nullptr) *plans[i].sums = std::move(sharing[i].tables->front());
  }
  return run;
}

}  // namespace sluice::bench
