// SPDX-License-Identifier: MIT
// Dump beside the raw disk, file system, block size, depth, fill state and sync being the same.
#include "lane/lane_run.h"
#include "measure/process.h"
#include "measure/raw_disk.h"
#include "scenario/pairs.h"
#include "scenario/place.h"
#include "scenario/scenario.h"

namespace sluice::bench {
namespace {

constexpr const char* kName = "amdgpu-pages-1-0001.img";
constexpr std::uint64_t kChunkBytes = 4 * kMiB;
constexpr std::uint64_t kStagingBytes = 64 * kMiB;
constexpr std::uint64_t kTouchBytes = 256 * kMiB;

}  // namespace

Result<Report> run_dump(const BenchOptions& options) {
  const std::uint64_t bytes = options.by_scale(16 * kMiB, kGiB, 4 * kGiB);
  const unsigned count = options.by_scale(1u, 5u, 9u);
  SLUICE_TRY_ASSIGN(const Place place, Place::make(options.directory));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<CopyEngine> engine, make_memcpy_engine({{bytes}}));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<RawDisk> raw,
                    RawDisk::make({{place.file("raw")},
                                   bytes,
                                   kChunkBytes,
                                   static_cast<std::uint32_t>(kStagingBytes / kChunkBytes)}));
  const auto dump = [&](bool checksum) {
    LanePlan plan;
    plan.engine = engine.get();
    plan.checksum = checksum;
    plan.directory = place.fd();
    plan.name = kName;
    return [plan, &place]() -> Result<Sample> {
      std::filesystem::remove(place.file(kName));  // a new file each time
      place.settle();
      SLUICE_TRY_ASSIGN(const RunResult run, run_lanes({&plan, 1}));
      return run.sample;
    };
  };
  Report report{"dump", "memory to durable file, beside the raw disk on new files", {}};
  for (const bool checksum : {true, false}) {
    Case each{checksum ? "memcpy, new file, checksum" : "memcpy, new file, no checksum", "", {}};
    options.tell(each.name);
    SLUICE_TRY_ASSIGN(const Pairs pairs, run_pairs(
                                             count, [&] { touch_free_memory(kTouchBytes); }, dump(checksum),
                                             [&] { return raw->write(); }));
    each.figures = pairs.figures();
    report.cases.push_back(std::move(each));
  }
  return report;
}

}  // namespace sluice::bench
