// SPDX-License-Identifier: MIT
// Real DMA: dump and restore of real GPU memory beside what the GPU's DMA engines and the sink can do, both
// measured in the same round. The sink is the disk, or memory: a store that drops what it gets, and on
// restore has every chunk at hand.
#include <algorithm>
#include <array>
#include <cstring>

#include "engine/copy_engine.h"
#include "engine/cuda_driver.h"
#include "engine/raw_dma.h"
#include "engine/timed_stage.h"
#include "lane/lane_run.h"
#include "measure/raw_disk.h"
#include "scenario/place.h"
#include "scenario/scenario.h"

namespace sluice::bench {
namespace {

using Engines = std::vector<std::unique_ptr<CopyEngine>>;

// ---- the image that the memory store holds: every chunk the same, but for the header

std::span<const std::byte> every_chunk() {
  static const std::vector<std::byte> bytes = [] {
    std::vector<std::byte> made(kChunkBytes);
    fill(made, Contents{{kChunkBytes}});
    return made;
  }();
  return bytes;
}

SumTable sums_of_image(const ImageLayout& layout) {
  SumTable table = SumTable::sized(layout.file_bytes(), kSumBlockBytes);
  std::array<Sum128, kChunkBytes / kSumBlockBytes> whole{};
  for (std::size_t i = 0; i < whole.size(); ++i)
    whole[i] = sum_of(every_chunk().subspan(i * kSumBlockBytes, kSumBlockBytes));
  for (std::size_t block = 0; block < table.sums.size(); ++block)
    table.sums[block] = whole[block % whole.size()];
  const std::size_t last = table.sums.size() - 1;
  const std::uint64_t tail = layout.file_bytes() - last * kSumBlockBytes;
  table.sums[last] = sum_of(every_chunk().subspan(last % whole.size() * kSumBlockBytes, tail));
  const std::span<const std::byte> first = every_chunk().first(std::min(kSumBlockBytes, layout.file_bytes()));
  std::vector<std::byte> with_header(first.begin(), first.end());
  const std::uint64_t payload = layout.payload_bytes();
  std::memcpy(with_header.data(), &payload, sizeof payload);
  table.sums[0] = sum_of(with_header);
  return table;
}

// The memory store on restore. A buffer is given its bytes the first time and keeps them: the DMA engine
// only reads there.
class MemorySource final : public Stage {
 public:
  MemorySource(const ImageLayout& layout, Reactor& reactor) : layout_(layout), reactor_(reactor) {}

  const char* name() const override { return "store"; }

  Result<Submit> submit(Slot& slot) override {
    if (slot.index >= filled_.size()) filled_.resize(slot.index + 1);
    if (!filled_[slot.index]) std::copy(every_chunk().begin(), every_chunk().end(), slot.buffer.begin());
    filled_[slot.index] = true;
    const std::uint64_t payload = layout_.payload_bytes();
    const void* begin = slot.chunk.index == 0 ? static_cast<const void*>(&payload) : every_chunk().data();
    std::memcpy(slot.buffer.data(), begin, kHeaderBytes);
    reactor_.post(slot.op(), 0);
    return Submit::Started;
  }
  Result<Progress> advance(Slot& /*slot*/, Op& /*op*/, std::int32_t /*result*/) override {
    return Progress::Done;
  }

 private:
  const ImageLayout& layout_;
  Reactor& reactor_;
  std::vector<bool> filled_;  // by slot
};

MakeStore memory_store(Direction direction) {
  return [direction](const ImageLayout& layout, Reactor& reactor) -> Result<std::unique_ptr<Stage>> {
    if (direction == Direction::Restore)
      return std::unique_ptr<Stage>(std::make_unique<MemorySource>(layout, reactor));
    SLUICE_TRY_ASSIGN(std::unique_ptr<Stage> sink, TimedStage::make("store", 0, reactor));
    return sink;
  };
}

// ---- rounds: ours, bare DMA and the bare sink, in turn

struct Round {
  RunResult ours;
  Sample dma, sink;

  double ceiling() const { return std::min(dma.gbps(), sink.gbps()); }
};

// Of every lane's stage `name`, the part of the time in which it had something to do; empty: it is on no
// route.
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

// Of the lane where it is largest: 1 - the busy part of its slowest stage.
double bubble(const RunResult& run) {
  double largest = 0;
  for (const LaneResult& lane : run.lanes) {
    largest = std::max(largest, 1 - static_cast<double>(lane.stats.slowest().busy_ns) /
                                        static_cast<double>(lane.stats.elapsed_ns));
  }
  return largest;
}

// Of the lane where it is largest: what is neither the pipeline's time nor shorter for fewer bytes.
double setup_seconds(const RunResult& run) {
  double largest = 0;
  for (const LaneResult& lane : run.lanes)
    largest = std::max(largest, lane.seconds - static_cast<double>(lane.stats.elapsed_ns) / 1e9);
  return largest;
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
  add("pinned", "MiB",
      [gpus](const Round&) { return static_cast<double>(gpus * kStagingBytes) / static_cast<double>(kMiB); });
  add("setup", "s", [](const Round& round) { return setup_seconds(round.ours); });
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

// Forth and back, so that none always comes first; one of ours before, untimed, takes the memory that the
// others then find touched.
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

// ---- what a machine is measured with

// Workers: as the plugin does, as many as there is room for. Inline: by the lane's own thread.
enum class Checksum : std::uint8_t { Workers, Inline, Off };

std::string name_of(std::size_t gpus, Direction direction, const char* store, Checksum checksum) {
  return std::to_string(gpus) + (gpus == 1 ? " GPU, " : " GPUs, ") +
         (direction == Direction::Dump ? "dump, " : "restore, ") + store +
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
    plans[i].checksum = checksum != Checksum::Off;
    if (checksum == Checksum::Workers) plans[i].checksum_workers = spare_workers(engines.size());
    plans[i].sums = &sums[i];
  }
  return plans;
}

Result<std::unique_ptr<RawDma>> make_dma(const BenchOptions& options, std::size_t gpus) {
  const std::uint64_t bytes = options.by_scale(16 * kMiB, 4 * kGiB, 16 * kGiB);
  return RawDma::make({static_cast<int>(gpus), bytes, kChunkBytes, kSlots});
}

// GPU memory to and from memory. Restore comes first: what the dumps then find is what it left there.
Result<void> measure_memory(const BenchOptions& options, std::size_t gpus, Report& report) {
  const std::uint64_t bytes = options.by_scale(16 * kMiB, 8 * kGiB, 64 * kGiB);
  const unsigned count = options.by_scale(1u, 3u, 9u);
  const unsigned few = options.by_scale(1u, 1u, 3u);  // of what is slow and told for comparison
  SLUICE_TRY_ASSIGN(const Engines engines, make_engines(gpus, bytes));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<CopyEngine> nothing, make_ghost_engine({{bytes}}, 0));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<RawDma> dma, make_dma(options, gpus));
  SLUICE_TRY_ASSIGN(const ImageLayout layout, ImageLayout::make(nothing->contents().bo_bytes, kChunkBytes));
  const SumTable image = sums_of_image(layout);
  std::vector<SumTable> sums(gpus, image);
  const auto plans_over_memory = [&](Direction direction, Checksum checksum) {
    std::vector<LanePlan> plans = plans_for(engines, direction, checksum, sums);
    for (LanePlan& plan : plans) plan.make_store = memory_store(direction);
    return plans;
  };
  for (const auto& engine : engines) SLUICE_TRY(engine->scribble());
  for (const Direction direction : {Direction::Restore, Direction::Dump}) {
    for (const Checksum checksum : {Checksum::Workers, Checksum::Inline, Checksum::Off}) {
      const std::string name =
          name_of(gpus, direction, direction == Direction::Dump ? "memory sink" : "memory source", checksum);
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
      report.cases.push_back(case_of(name, "", rounds, gpus));
    }
  }
  return {};
}

// GPU memory to new files, and from files that are not in the page cache.
Result<void> measure_disk(const BenchOptions& options, std::size_t gpus, Report& report) {
  const std::uint64_t bytes = options.by_scale(16 * kMiB, kGiB, 2 * kGiB) / gpus;
  const unsigned count = options.by_scale(1u, 3u, 9u);
  SLUICE_TRY_ASSIGN(const Place place, Place::make(options.directory));
  SLUICE_TRY_ASSIGN(const Engines engines, make_engines(gpus, bytes));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<RawDma> dma, make_dma(options, gpus));
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
      const std::string name = name_of(gpus, direction, "disk", checksum);
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
                            count, ours, [&] { return dma->run(direction); },
                            [&] { return direction == Direction::Dump ? raw->write() : raw->read(); }));
      for (const auto& engine : engines) {
        SLUICE_TRY_ASSIGN(const bool intact, engine->intact());
        if (!intact) return Error{EBADMSG, name + ": the GPU does not hold what was dumped"};
      }
      std::string note = raw->direct() ? "" : "no direct I/O here: through the page cache";
      if (!raw->ring()) note += " no io_uring here: threads do the I/O";
      report.cases.push_back(case_of(name, note, rounds, gpus));
    }
    raw->remove();
  }
  return {};
}

// What one core and one link can do.
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
  std::vector<std::size_t> gpu_counts = {1};
  if (count > 1) gpu_counts.push_back(static_cast<std::size_t>(count));
  for (const std::size_t gpus : gpu_counts) SLUICE_TRY(measure_memory(options, gpus, report));
  SLUICE_TRY(measure_disk(options, gpu_counts.back(), report));
  return report;
}

}  // namespace sluice::bench
