// SPDX-License-Identifier: MIT
// Real DMA: dump and restore of real GPU memory. They are compared with the limits of the GPU's DMA engines
// and of the sink, measured in the same round. The sink is the disk, or memory: a store that discards a
// dump's chunks and has every chunk of a restore ready.
#include <algorithm>

#include "cuda/driver.h"
#include "cuda/raw_dma.h"
#include "engine/copy_engine.h"
#include "lane/lane_run.h"
#include "lane/memory_store.h"
#include "measure/raw_disk.h"
#include "scenario/place.h"
#include "scenario/scenario.h"
#include "scenario/shape.h"

namespace sluice::bench {
namespace {

using Engines = std::vector<std::unique_ptr<CopyEngine>>;

// ---- rounds: ours, bare DMA and the bare sink, in turn

struct Round {
  RunResult ours;
  Sample dma, sink;

  double ceiling() const { return std::min(dma.gbps(), sink.gbps()); }
};

// For the stage `name` of every lane, the share of time in which it was busy; empty: it is on no route.
std::vector<double> occupancies(const RunResult& run, std::string_view name) {
  std::vector<double> parts;
  for (const LaneResult& lane : run.lanes) {
    for (std::uint32_t i = 0; i < lane.stats.stages; ++i) {
      if (lane.stats.stage[i].name == name) {
        parts.push_back(static_cast<double>(lane.stats.stage[i].busy_ns) /
                        static_cast<double>(lane.stats.elapsed_ns));
      }
    }
  }
  return parts;
}

// The largest of all lanes: 1 - the busy share of its slowest stage.
double bubble(const RunResult& run) {
  double largest = 0;
  for (const LaneResult& lane : run.lanes) {
    largest = std::max(largest, 1 - static_cast<double>(lane.stats.slowest().busy_ns) /
                                        static_cast<double>(lane.stats.elapsed_ns));
  }
  return largest;
}

// The largest of all lanes.
double latest(const RunResult& run, double LaneTimes::*time) {
  double last = 0;
  for (const LaneResult& lane : run.lanes) last = std::max(last, lane.times.*time);
  return last;
}

double earliest(const RunResult& run, double LaneTimes::*time) {
  double first = latest(run, time);
  for (const LaneResult& lane : run.lanes) first = std::min(first, lane.times.*time);
  return first;
}

Case case_of(std::string name, std::string note, const std::vector<Round>& rounds, std::size_t gpus) {
  Case each{std::move(name), std::move(note), {}};
  std::vector<double> ours, ceiling;
  const auto add = [&](const char* figure_name, const char* unit, auto value) {
    std::vector<double> values;
    for (const Round& round : rounds) values.push_back(value(round));
    each.figures.push_back(figure(figure_name, unit, std::move(values)));
  };
  for (const Round& round : rounds) {
    ours.push_back(round.ours.sample.gbps());
    ceiling.push_back(round.ceiling());
  }
  each.figures.push_back(ratio("ratio", ours, ceiling));
  each.figures.push_back(figure("ours", "GB/s", ours));
  each.figures.push_back(figure("ceiling", "GB/s", ceiling));
  add("DMA", "GB/s", [](const Round& round) { return round.dma.gbps(); });
  add("sink", "GB/s", [](const Round& round) { return round.sink.gbps(); });
  add("cpu", "s/GB", [](const Round& round) { return round.ours.sample.cpu_seconds_per_gb(); });
  add("DMA cpu", "s/GB", [](const Round& round) { return round.dma.cpu_seconds_per_gb(); });
  add("sink cpu", "s/GB", [](const Round& round) { return round.sink.cpu_seconds_per_gb(); });
  add("pinned", "MiB", [gpus](const Round&) {
    return static_cast<double>(gpus * standard_staging_bytes(gpus)) / static_cast<double>(kMiB);
  });
  add("memory", "s", [](const Round& round) { return latest(round.ours, &LaneTimes::made); });
  add("setup", "s", [](const Round& round) { return latest(round.ours, &LaneTimes::ready); });
  add("uneven", "s", [](const Round& round) {
    return latest(round.ours, &LaneTimes::done) - earliest(round.ours, &LaneTimes::done);
  });
  add("end", "s",
      [](const Round& round) { return round.ours.sample.seconds - latest(round.ours, &LaneTimes::done); });
  add("bubble", "ratio", [](const Round& round) { return bubble(round.ours); });
  for (const char* stage : {"copy", "checksum", "store"}) {
    std::vector<double> parts;
    for (const Round& round : rounds) {
      const std::vector<double> of_round = occupancies(round.ours, stage);
      parts.insert(parts.end(), of_round.begin(), of_round.end());
    }
    if (!parts.empty()) each.figures.push_back(figure(std::string(stage) + " occupancy", "ratio", parts));
  }
  return each;
}

using MeasureOurs = std::function<Result<RunResult>()>;
using Measure = std::function<Result<Sample>()>;

// Forwards and backwards, so that none always comes first. An untimed run of ours comes before, so that the
// others find memory touched.
Result<std::vector<Round>> run_rounds(unsigned count, const MeasureOurs& ours, const Measure& dma,
                                      const Measure& sink) {
  SLUICE_TRY(ours());
  std::vector<Round> rounds(count);
  for (unsigned i = 0; i < count; ++i) {
    Round& round = rounds[i];
    for (unsigned turn = 0; turn < 3; ++turn) {
      switch (i % 2 == 0 ? turn : 2 - turn) {
        case 0: {
          SLUICE_TRY_ASSIGN(round.ours, ours());
          break;
        }
        case 1: {
          SLUICE_TRY_ASSIGN(round.dma, dma());
          break;
        }
        default: {
          SLUICE_TRY_ASSIGN(round.sink, sink());
        }
      }
    }
  }
  return rounds;
}

// ---- the ways of measuring a machine

// Workers: like the plugin, as many as there is room for. Inline: by the lane's own thread.
enum class Checksum : std::uint8_t { Workers, Inline, Off };

std::string name_of(std::size_t gpus, std::uint64_t bytes, Direction direction, const char* store,
                    Checksum checksum) {
  return std::to_string(gpus) + (gpus == 1 ? " GPU, " : " GPUs, ") +
         (direction == Direction::Dump ? "dump, " : "restore, ") + store + ", " +
         std::to_string(bytes * gpus / kMiB) + " MiB" +
         (checksum == Checksum::Workers  ? ", checksum"
          : checksum == Checksum::Inline ? ", checksum inline"
                                         : ", no checksum");
}

std::string file_of(std::size_t gpu) {
  return "amdgpu-pages-1-000" + std::to_string(gpu + 1) + ".img";
}

Result<std::string> name_of_first_gpu() {
  SLUICE_TRY_ASSIGN(const cuda::Gpu gpu, cuda::Gpu::open(0));
  return gpu.name();
}

Result<Sample> sample_of(std::span<const LanePlan> plans) {
  SLUICE_TRY_ASSIGN(const RunResult run, run_lanes(plans));
  return run.sample;
}

Result<Engines> make_engines(std::size_t gpus, std::uint64_t bytes) {
  Engines engines;
  for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
    SLUICE_TRY_ASSIGN(std::unique_ptr<CopyEngine> engine,
                      make_cuda_engine({{bytes}, 0, 0, gpu + 1}, static_cast<int>(gpu)));
    engines.push_back(std::move(engine));
  }
  return engines;
}

std::vector<LanePlan> plans_for(const Engines& engines, Direction direction, Checksum checksum,
                                std::vector<SumTable>& sums) {
  std::vector<LanePlan> plans(engines.size());
  for (std::size_t i = 0; i < engines.size(); ++i) {
    plans[i].engine = engines[i].get();
    plans[i].direction = direction;
    plans[i].staging_bytes = standard_staging_bytes(engines.size());
    plans[i].checksum = checksum != Checksum::Off;
    if (checksum == Checksum::Workers) plans[i].checksum_workers = spare_workers(engines.size());
    plans[i].sums = &sums[i];
  }
  return plans;
}

// As many bytes per GPU as ours: GPUs that share a link then end equally late for both.
Result<std::unique_ptr<RawDma>> make_dma(std::size_t gpus, std::uint64_t bytes) {
  return RawDma::make(
      {static_cast<int>(gpus), bytes, kChunkBytes, slots_in(standard_staging_bytes(gpus), kChunkBytes)});
}

// How much is moved, for all GPUs, and how often.
struct Length {
  std::uint64_t bytes = 0;
  unsigned rounds = 0;
};

// A short one, dominated by set-up and end, and a long one.
std::vector<Length> lengths(const BenchOptions& options) {
  if (options.scale == Scale::Smoke) return {{16 * kMiB, 1}};
  if (options.scale == Scale::Quick) return {{2 * kGiB, 5}, {16 * kGiB, 2}};
  return {{2 * kGiB, 9}, {16 * kGiB, 3}};
}

// All, then half of those, down to one. Quick: all.
std::vector<std::size_t> gpu_counts(const BenchOptions& options, int count) {
  std::vector<std::size_t> counts;
  for (auto gpus = static_cast<std::size_t>(count); gpus > 0; gpus /= 2) {
    counts.push_back(gpus);
    if (options.scale == Scale::Quick) break;
  }
  return counts;
}

// GPU memory to and from memory. Restores first, so that the dumps find what they left there.
Result<void> measure_memory(const BenchOptions& options, std::size_t gpus, std::uint64_t bytes,
                            Report& report) {
  const unsigned count = options.by_scale(1u, 5u, 9u);
  const unsigned few = options.by_scale(1u, 1u, 3u);  // for slow ones that are only compared
  SLUICE_TRY_ASSIGN(const Engines engines, make_engines(gpus, bytes));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<CopyEngine> nothing, make_ghost_engine({{bytes}}, 0));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<RawDma> dma, make_dma(gpus, bytes));
  SLUICE_TRY_ASSIGN(const ImageLayout layout, ImageLayout::make(nothing->contents().bo_bytes, kChunkBytes));
  const SumTable image = sums_of_memory(layout);
  std::vector<SumTable> sums(gpus, image);
  const auto plans_over_memory = [&](Direction direction, Checksum checksum) {
    std::vector<LanePlan> plans = plans_for(engines, direction, checksum, sums);
    for (LanePlan& plan : plans) plan.make_store = memory_store(direction);
    return plans;
  };
  for (const auto& engine : engines) SLUICE_TRY(engine->scribble());
  for (const Direction direction : {Direction::Restore, Direction::Dump}) {
    for (const Checksum checksum : {Checksum::Workers, Checksum::Inline, Checksum::Off}) {
      if (checksum == Checksum::Inline && (gpus > 1 || options.scale == Scale::Quick)) continue;
      const std::string name = name_of(
          gpus, bytes, direction, direction == Direction::Dump ? "memory sink" : "memory source", checksum);
      options.tell(name);
      const std::vector<LanePlan> plans = plans_over_memory(direction, checksum);
      std::vector<LanePlan> bare = plans_over_memory(direction, Checksum::Off);
      for (LanePlan& plan : bare) plan.engine = nothing.get();
      SLUICE_TRY_ASSIGN(const std::vector<Round> rounds,
                        run_rounds(
                            checksum == Checksum::Inline ? few : count, [&] { return run_lanes(plans); },
                            [&] { return dma->run(direction); }, [&] { return sample_of(bare); }));
      SLUICE_TRY(run_lanes(plans_over_memory(Direction::Dump, Checksum::Workers)));
      for (const SumTable& found : sums) {
        if (found.sums != image.sums)
          return Error{EBADMSG, name + ": the GPU does not hold what was restored"};
      }
      add_case(options, report, case_of(name, "", rounds, gpus));
    }
  }
  return {};
}

// GPU memory to new files, and from files outside the page cache.
Result<void> measure_disk(const BenchOptions& options, std::size_t gpus, const Length& length, bool with_off,
                          Report& report) {
  const std::uint64_t bytes = length.bytes / gpus;
  SLUICE_TRY_ASSIGN(const Place place, Place::make(options.directory));
  SLUICE_TRY_ASSIGN(const Engines engines, make_engines(gpus, bytes));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<RawDma> dma, make_dma(gpus, bytes));
  RawPlan raw_writes{{}, bytes, kChunkBytes, kSlots};
  RawPlan raw_reads = raw_writes;
  std::vector<SumTable> sums(gpus);
  const auto plans_over_files = [&](Direction direction, Checksum checksum) {
    std::vector<LanePlan> plans = plans_for(engines, direction, checksum, sums);
    for (std::size_t i = 0; i < gpus; ++i) {
      plans[i].directory = place.fd();
      plans[i].name = file_of(i);
    }
    return plans;
  };
  for (std::size_t i = 0; i < gpus; ++i) {
    raw_writes.files.push_back(place.file("raw-" + std::to_string(i)));
    raw_reads.files.push_back(place.file(file_of(i)));
  }
  for (const Direction direction : {Direction::Dump, Direction::Restore}) {
    SLUICE_TRY_ASSIGN(const std::unique_ptr<RawDisk> raw,
                      RawDisk::make(direction == Direction::Dump ? raw_writes : raw_reads));
    if (direction == Direction::Restore) {
      SLUICE_TRY(run_lanes(plans_over_files(Direction::Dump, Checksum::Workers)));
      for (const auto& engine : engines) SLUICE_TRY(engine->scribble());
    }
    for (const Checksum checksum : {Checksum::Workers, Checksum::Off}) {
      if (checksum == Checksum::Off && !with_off) continue;
      const std::string name = name_of(gpus, bytes, direction, "disk", checksum);
      options.tell(name);
      const std::vector<LanePlan> plans = plans_over_files(direction, checksum);
      const auto ours = [&] {
        for (std::size_t i = 0; i < gpus && direction == Direction::Dump; ++i)
          std::filesystem::remove(place.file(file_of(i)));  // a new file each time
        place.settle();
        return run_lanes(plans);
      };
      SLUICE_TRY_ASSIGN(const std::vector<Round> rounds,
                        run_rounds(
                            length.rounds, ours, [&] { return dma->run(direction); },
                            [&] { return direction == Direction::Dump ? raw->write() : raw->read(); }));
      for (const auto& engine : engines) {
        SLUICE_TRY_ASSIGN(const bool intact, engine->intact());
        if (!intact) return Error{EBADMSG, name + ": the GPU does not hold what was dumped"};
      }
      std::string note = raw->direct() ? "" : "no direct I/O here: through the page cache";
      if (!raw->ring()) note += " no io_uring here: threads do the I/O";
      add_case(options, report, case_of(name, note, rounds, gpus));
    }
    raw->remove();
  }
  return {};
}

// The limits of one core and one link.
Result<Case> measure_limits(const BenchOptions& options) {
  const unsigned count = options.by_scale(1u, 3u, 9u);
  const std::uint64_t bytes = options.by_scale(16 * kMiB, 4 * kGiB, 16 * kGiB);
  SLUICE_TRY_ASSIGN(const std::unique_ptr<RawDma> dma, RawDma::make({1, bytes, kChunkBytes, kSlots}));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<RawDma> skewed,
                    RawDma::make({1, bytes, kChunkBytes, kSlots, kChunkBytes - kHeaderBytes}));
  std::vector<double> down, up, down_skewed, up_skewed, sums_of_ring;
  for (unsigned i = 0; i < count; ++i) {
    for (const auto& [raw, direction, rates] :
         {std::tuple{dma.get(), Direction::Dump, &down}, std::tuple{dma.get(), Direction::Restore, &up},
          std::tuple{skewed.get(), Direction::Dump, &down_skewed},
          std::tuple{skewed.get(), Direction::Restore, &up_skewed}}) {
      SLUICE_TRY_ASSIGN(const Sample sample, raw->run(direction));
      rates->push_back(sample.gbps());
    }
    SLUICE_TRY_ASSIGN(const double ring, dma->sum_rate());
    sums_of_ring.push_back(ring);
  }
  return Case{"limits, 1 GPU",
              "skewed: as a pages file has it, whose header is 8 bytes long; checksum: one core, of what the "
              "GPU has just copied",
              {figure("dump DMA", "GB/s", down), figure("restore DMA", "GB/s", up),
               figure("dump DMA, skewed", "GB/s", down_skewed),
               figure("restore DMA, skewed", "GB/s", up_skewed), figure("checksum", "GB/s", sums_of_ring)}};
}

}  // namespace

Result<Report> run_cuda(const BenchOptions& options) {
  SLUICE_TRY_ASSIGN(const int count, cuda::load());
  SLUICE_TRY_ASSIGN(const std::string gpu_name, name_of_first_gpu());
  Report report{
      "cuda",
      "GPU memory beside the smaller of bare DMA and bare sink; " + std::to_string(count) + " x " + gpu_name,
      {}};
  options.tell("limits");
  SLUICE_TRY_ASSIGN(Case limits, measure_limits(options));
  report.cases.push_back(std::move(limits));
  for (const std::size_t gpus : gpu_counts(options, count)) {
    for (const Length& length : lengths(options))
      SLUICE_TRY(measure_memory(options, gpus, length.bytes / gpus, report));
    if (options.scale != Scale::Smoke) SLUICE_TRY(measure_memory(options, gpus, 32 * kGiB, report));
  }
  return report;
}

Result<Report> run_cuda_disk(const BenchOptions& options) {
  SLUICE_TRY_ASSIGN(const int count, cuda::load());
  SLUICE_TRY_ASSIGN(const std::string gpu_name, name_of_first_gpu());
  Report report{
      "cuda-disk",
      "GPU memory and files beside bare writes and reads; " + std::to_string(count) + " x " + gpu_name,
      {}};
  for (const std::size_t gpus : gpu_counts(options, count)) {
    for (const Length& length : lengths(options))
      SLUICE_TRY(measure_disk(options, gpus, length, false, report));
  }
  return report;
}

}  // namespace sluice::bench
