// SPDX-License-Identifier: MIT
// The machine's limits, without our code: disk by fill state, memory and checksum. The disk's figures are
// compared with fio's, if installed.
#include "engine/core_rates.h"
#include "lane/lane_run.h"
#include "measure/fio.h"
#include "measure/process.h"
#include "measure/raw_disk.h"
#include "scenario/pairs.h"
#include "scenario/place.h"
#include "scenario/scenario.h"
#include "scenario/shape.h"

namespace sluice::bench {
namespace {

Result<Case> memory_case(const BenchOptions& options) {
  const std::uint64_t bytes = options.by_scale(16 * kMiB, 256 * kMiB, kGiB);
  const unsigned count = options.by_scale(1u, 5u, 9u);
  std::vector<double> copies, sums, keyed;
  SLUICE_TRY_ASSIGN(const std::vector<CoreRates> all, measure_core(bytes, count));
  for (const CoreRates& rates : all) {
    copies.push_back(rates.copy / 1e9);
    sums.push_back(rates.checksum / 1e9);
    keyed.push_back(rates.keyed / 1e9);
  }
  return Case{"one core",
              "copies go from memory into a ring of 64 MiB; sums are of memory",
              {figure("copy", "GB/s", copies), figure("checksum", "GB/s", sums),
               figure("checksum with a key", "GB/s", keyed)}};
}

// Both do the same to the same file, in turn. `plan`: as for the ceiling.
Result<Case> fio_case(const Place& place, RawPlan plan, unsigned count) {
  const FioPlan fio{plan.files.front(), plan.bytes_per_file, plan.block_bytes, plan.depth};
  Case each{std::string("fio, ") + name_of(plan.fill) + " file", "", {}};
  plan.fsync = true;  // fio has no other way to end
  SLUICE_TRY_ASSIGN(const std::unique_ptr<RawDisk> raw, RawDisk::make(std::move(plan)));
  const auto settle = [&] {
    place.settle();
    touch_free_memory(kTouchBytes);
  };
  const auto prepared = [&](const Run& run) -> Run {
    return [&, run]() -> Result<Sample> {
      SLUICE_TRY(raw->prepare());
      settle();
      return run();
    };
  };
  SLUICE_TRY_ASSIGN(const Pairs writes, run_pairs(
                                            count, [] {}, prepared([&] { return raw->write_prepared(); }),
                                            prepared([&] { return fio_write(fio); })));
  SLUICE_TRY_ASSIGN(const Pairs reads,
                    run_pairs(
                        count, settle, [&] { return raw->read(); }, [&] { return fio_read(fio); }));
  each.figures = {ratio("write ratio", writes.our_gbps(), writes.raw_gbps()),
                  ratio("read ratio", reads.our_gbps(), reads.raw_gbps()),
                  figure("raw write", "GB/s", writes.our_gbps()),
                  figure("fio write", "GB/s", writes.raw_gbps()),
                  figure("raw read", "GB/s", reads.our_gbps()),
                  figure("fio read", "GB/s", reads.raw_gbps())};
  each.note = "our raw loop, writes: " + verdict_of(each.figures[0].value) +
              "; reads: " + verdict_of(each.figures[1].value);
  return each;
}

}  // namespace

Result<Report> run_limits(const BenchOptions& options) {
  const std::uint64_t bytes = options.by_scale(16 * kMiB, kGiB, 4 * kGiB);
  const unsigned count = options.by_scale(1u, 5u, 9u);
  Report report{"limits", "the raw ceilings of this machine", {}};
  SLUICE_TRY_ASSIGN(const Place place, Place::make(options.directory));
  std::string no_fio = options.scale == Scale::Smoke ? "this is a smoke run"
                       : have_fio()                  ? ""
                                                     : "it is not installed";
  for (const FillState fill : {FillState::New, FillState::Allocated, FillState::Rewritten}) {
    options.tell(std::string("disk, ") + name_of(fill));
    const RawPlan plan{{place.file("raw")}, bytes, kChunkBytes, kSlots, fill};
    SLUICE_TRY_ASSIGN(const std::unique_ptr<RawDisk> raw, RawDisk::make(plan));
    std::vector<double> writes, reads;
    for (unsigned i = 0; i < count; ++i) {
      place.settle();
      SLUICE_TRY_ASSIGN(const Sample write, raw->write());
      SLUICE_TRY_ASSIGN(const Sample read, raw->read());
      writes.push_back(write.gbps());
      reads.push_back(read.gbps());
    }
    std::string note = raw->direct() ? "" : "no direct I/O here: through the page cache";
    if (!raw->ring()) note += " no io_uring here: one block at a time";
    report.cases.push_back({std::string("disk, ") + name_of(fill) + " file",
                            note,
                            {figure("write", "GB/s", writes), figure("read", "GB/s", reads)}});
    if (no_fio.empty() && !(raw->direct() && raw->ring() && raw->registered()))
      no_fio = "our loop cannot be like it here (no direct I/O, no io_uring, or no registered buffers)";
    if (no_fio.empty()) {
      options.tell(std::string("fio, ") + name_of(fill));
      SLUICE_TRY_ASSIGN(Case fio, fio_case(place, plan, count));
      report.cases.push_back(std::move(fio));
    }
    raw->remove();
  }
  if (!no_fio.empty()) report.cases.push_back({"fio", "left out: " + no_fio, {}});
  options.tell("memory");
  SLUICE_TRY_ASSIGN(Case memory, memory_case(options));
  report.cases.push_back(std::move(memory));
  return report;
}

}  // namespace sluice::bench
