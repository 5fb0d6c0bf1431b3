// SPDX-License-Identifier: MIT
// `sluice plan` compared with reality: the time of dumps and restores computed from the rates of the parts,
// and the engine's measured time. First machines of timed GPUs and disks, which are exactly as fast as
// described; then this machine's disk, whose rate is measured in turn with the runs.
#include <thread>

#include "cli/plan/planned_machine.h"
#include "engine/core_rates.h"
#include "engine/timed_stage.h"
#include "lane/lane_run.h"
#include "measure/process.h"
#include "measure/raw_disk.h"
#include "scenario/pairs.h"
#include "scenario/place.h"
#include "scenario/scenario.h"
#include "scenario/shape.h"

namespace sluice::bench {
namespace {

using cli::DiskGroup;
using cli::GpuGroup;
using cli::Machine;

// A part that should take no time in timed machines: nothing hashes there.
constexpr double kFast = 1e15;

// The forecast and the measurement of one case.
struct Times {
  std::vector<double> foretold;  // seconds
  std::vector<double> taken;

  std::vector<Figure> figures() const {
    return {ratio("ratio", taken, foretold), figure("foretold", "s", foretold), figure("taken", "s", taken)};
  }
};

// ---- timed machines

struct TimedCase {
  const char* name;
  std::vector<GpuGroup> gpus;  // bytes: in parts of the case's unit
  double disk_rate;
};

const std::vector<TimedCase>& timed_cases() {
  static const std::vector<TimedCase> kCases = {
      {"1 GPU, its copies are the slowest", {{1, 1, 0, 2e9, 0, 1}}, 4e9},
      {"1 GPU, the disk is the slowest", {{1, 1, 0, 4e9, 0, 1}}, 2e9},
      {"8 GPUs on one disk", {{8, 1, 0, 2e9, 0, 1}}, 4e9},
      {"8 GPUs on a disk that carries all", {{8, 1, 0, 1e9, 0, 1}}, 12e9},
      {"4 GPUs with much in some", {{2, 1, 0, 2e9, 0, 1}, {1, 2, 0, 2e9, 0, 1}, {1, 4, 0, 2e9, 0, 1}}, 4e9},
      {"4 GPUs of two speeds", {{2, 1, 0, 0.5e9, 0, 1}, {2, 2, 0, 3e9, 0, 1}}, 4e9},
  };
  return kCases;
}

// One lane per GPU, all into one timed disk.
Result<double> run_timed(const Machine& machine, double disk_rate) {
  const auto disk = std::make_shared<TimedDevice>(disk_rate);
  std::vector<std::unique_ptr<CopyEngine>> engines;
  std::vector<LanePlan> plans;
  for (const GpuGroup& group : machine.gpus) {
    for (std::uint64_t i = 0; i < group.count; ++i) {
      SLUICE_TRY_ASSIGN(std::unique_ptr<CopyEngine> engine,
                        make_ghost_engine({{group.bytes - kHeaderBytes}}, group.copy_rate));
      LanePlan plan;
      plan.engine = engine.get();
      plan.checksum = false;
      plan.make_store = [disk](const ImageLayout& /*layout*/,
                               Reactor& reactor) -> Result<std::unique_ptr<Stage>> {
        SLUICE_TRY_ASSIGN(std::unique_ptr<Stage> stage, TimedStage::make("store", disk, reactor));
        return stage;
      };
      engines.push_back(std::move(engine));
      plans.push_back(std::move(plan));
    }
  }
  SLUICE_TRY_ASSIGN(const RunResult run, run_lanes(plans));
  if (run.sample.bytes != machine.bytes()) return Error{EIO, "the lanes' bytes do not add up"};
  return run.sample.seconds;
}

Result<void> add_timed_cases(const BenchOptions& options, Report& report) {
  const std::uint64_t unit = options.by_scale(4 * kMiB, 512 * kMiB, 2 * kGiB);
  const unsigned count = options.by_scale(1u, 3u, 9u);
  for (const TimedCase& wanted : timed_cases()) {
    options.tell(wanted.name);
    Machine machine{wanted.gpus, {{1, wanted.disk_rate, wanted.disk_rate}}, 1024, kFast};
    for (GpuGroup& group : machine.gpus) group.bytes *= unit;
    Times times;
    for (unsigned i = 0; i < count; ++i) {
      times.foretold.push_back(cli::forecast(machine, Direction::Dump, kChunkBytes).seconds);
      SLUICE_TRY_ASSIGN(const double seconds, run_timed(machine, wanted.disk_rate));
      times.taken.push_back(seconds);
    }
    report.cases.push_back({wanted.name, "timed", times.figures()});
  }
  return {};
}

// ---- this machine

// A GPU's memory on this machine's disk, and its time.
Result<void> add_disk_cases(const BenchOptions& options, Report& report) {
  const std::uint64_t bytes = options.by_scale(16 * kMiB, kGiB, 4 * kGiB);
  const unsigned count = options.by_scale(1u, 5u, 9u);
  SLUICE_TRY_ASSIGN(const Place place, Place::make(options.directory));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<RawDisk> raw,
                    RawDisk::make({{place.file("raw")}, bytes, kChunkBytes, kSlots}));
  SLUICE_TRY_ASSIGN(const std::vector<CoreRates> cores,
                    measure_core(options.by_scale(4 * kMiB, 256 * kMiB, kGiB), 1));
  const CoreRates& core = cores.front();
  struct Gpu {
    const char* name;
    double copy_rate;  // 0: that of a thread, instead of the GPU
    double zero;
  };
  // DMA that costs the processors nothing, like a GPU's, and DMA by the processors.
  for (const auto& [gpu, copy_rate, zero] :
       {Gpu{"ghost", 25e9, 0}, Gpu{"memcpy", 0, 0}, Gpu{"memcpy, half zero", 0, 0.5}}) {
    SLUICE_TRY_ASSIGN(const std::unique_ptr<CopyEngine> engine,
                      copy_rate > 0 ? make_ghost_engine({{bytes}}, copy_rate)
                                    : make_memcpy_engine({{bytes}, zero, 4 * kMiB}));
    SumTable sums;
    LanePlan plan = pages_plan(*engine, place, &sums);
    Times dumps, restores;
    for (unsigned i = 0; i < count; ++i) {
      options.tell("this disk, " + std::string(gpu) + ", round " + std::to_string(i + 1) + " of " +
                   std::to_string(count));
      Machine machine{{{1, bytes, zero, copy_rate > 0 ? copy_rate : core.copy, 0, 1}},
                      {{}},
                      std::thread::hardware_concurrency(),
                      core.checksum};
      for (const Direction direction : {Direction::Dump, Direction::Restore}) {
        const bool dump = direction == Direction::Dump;
        plan.direction = direction;
        if (dump) std::filesystem::remove(place.file(kPagesName));
        place.settle();
        touch_free_memory(kTouchBytes);
        SLUICE_TRY_ASSIGN(const Sample disk, dump ? raw->write() : raw->read());
        (dump ? machine.disks[0].write_rate : machine.disks[0].read_rate) = disk.gbps() * 1e9;
        if (!dump) SLUICE_TRY(engine->scribble());
        SLUICE_TRY_ASSIGN(const RunResult run, run_lanes({&plan, 1}));
        Times& times = dump ? dumps : restores;
        times.foretold.push_back(cli::forecast(machine, direction, kChunkBytes).seconds);
        times.taken.push_back(run.sample.seconds);
      }
    }
    SLUICE_TRY_ASSIGN(const bool intact, engine->intact());
    if (!intact) return Error{EBADMSG, "the restored contents are not what was dumped"};
    report.cases.push_back({"this disk, dump, " + std::string(gpu), "new file, checksum", dumps.figures()});
    report.cases.push_back(
        {"this disk, restore, " + std::string(gpu), "every block verified", restores.figures()});
  }
  raw->remove();
  return {};
}

}  // namespace

Result<Report> run_plan(const BenchOptions& options) {
  Report report{
      "plan", "the time that a dump or restore takes, beside the time that sluice plan foretells", {}};
  SLUICE_TRY(add_timed_cases(options, report));
  SLUICE_TRY(add_disk_cases(options, report));
  return report;
}

}  // namespace sluice::bench
