// SPDX-License-Identifier: MIT
// Dump beside the raw disk, with the same file system, block size, depth, fill state and sync.
#include <fcntl.h>

#include <cerrno>

#include "lane/lane_run.h"
#include "measure/process.h"
#include "measure/raw_disk.h"
#include "scenario/pairs.h"
#include "scenario/place.h"
#include "scenario/scenario.h"
#include "scenario/shape.h"
#include "scenario/vamdgpu_cases.h"

namespace sluice::bench {
namespace {

struct DumpCase {
  FillState fill;
  bool checksum;
};

// Prepares the file as the dump should find it.
Result<void> prepare(const Place& place, FillState fill, std::uint64_t bytes) {
  if (fill != FillState::Rewritten) std::filesystem::remove(place.file(kPagesName));
  if (fill == FillState::Allocated) {
    const UniqueFd fd(::open(place.file(kPagesName).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!fd || ::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0)
      return make_error(errno, "fallocate");
  }
  place.settle();
  return {};
}

// The cost of a part of the sums: dumps to new files with and without it, plus one checked dump of each.
// `what`: "checksum", or "key" if not none.
Result<Case> checksum_case(const BenchOptions& options, CopyEngine& engine, const Place& place,
                           std::uint64_t bytes, const std::string& name, const std::string& what,
                           const std::string& note) {
  SLUICE_TRY(load_mac());
  SumTable sums;
  LanePlan plan = pages_plan(engine, place, &sums);
  const auto dump = [&](bool on) -> Result<Sample> {
    SLUICE_TRY(prepare(place, FillState::New, bytes + kHeaderBytes));
    if (what == "key") {
      sums.method = on ? SumMethod(MacKey{}) : SumMethod();
    } else {
      plan.checksum = on;
    }
    SLUICE_TRY_ASSIGN(const RunResult run, run_lanes({&plan, 1}));
    return run.sample;
  };
  SLUICE_TRY_ASSIGN(Case each, on_off_case(options, name, note, dump));
  for (const bool on : {true, false}) {
    SLUICE_TRY(dump(on));
    SLUICE_TRY(checked_restore(plan, 0));
  }
  return each;
}

// The measurements on the engine that this process can have.
Result<void> add_cases(const BenchOptions& options, std::uint64_t bytes, Report& report) {
  const unsigned count = options.by_scale(1u, 5u, 9u);
  SLUICE_TRY_ASSIGN(const Place place, Place::make(options.directory));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<CopyEngine> engine,
                    on_virtual_machine() ? make_vamdgpu_engine({{bytes}}) : make_memcpy_engine({{bytes}}));
  std::vector<DumpCase> cases = {{FillState::New, true}};
  if (!on_virtual_machine()) {
    cases.insert(cases.end(),
                 {{FillState::New, false}, {FillState::Allocated, true}, {FillState::Rewritten, true}});
  }
  for (const DumpCase& wanted : cases) {
    SLUICE_TRY_ASSIGN(const std::unique_ptr<RawDisk> raw,
                      RawDisk::make({{place.file("raw")}, bytes, kChunkBytes, kSlots, wanted.fill}));
    SumTable sums;
    LanePlan plan = pages_plan(*engine, place, &sums);
    plan.checksum = wanted.checksum;
    plan.file.reuse = wanted.fill != FillState::New;
    Case each{engine->name() + std::string(", ") + name_of(wanted.fill) + " file" +
                  (wanted.checksum ? ", checksum" : ", no checksum"),
              "",
              {}};
    if (!options.wants(each.name)) continue;
    options.tell(each.name);
    if (wanted.fill == FillState::Rewritten) SLUICE_TRY(run_lanes({&plan, 1}));  // to be overwritten
    const auto dump = [&]() -> Result<Sample> {
      SLUICE_TRY(prepare(place, wanted.fill, bytes + kHeaderBytes));
      SLUICE_TRY_ASSIGN(const RunResult run, run_lanes({&plan, 1}));
      return run.sample;
    };
    SLUICE_TRY_ASSIGN(const Pairs pairs, run_pairs(
                                             count, [&] { touch_free_memory(kTouchBytes); }, dump,
                                             [&] { return raw->write(); }));
    raw->remove();
    SLUICE_TRY(checked_restore(plan, 0));  // of the last run's file
    each.figures = pairs.figures();
    report.cases.push_back(std::move(each));
  }
  for (const auto& [part, note] :
       {std::pair("checksum", "what the checksums of blocks cost"),
        std::pair("key", "what it costs to make these with a key; the lane hashes")}) {
    const std::string name = std::string(engine->name()) + ", new file, " + part + " on / off";
    if (on_virtual_machine() || !options.wants(name)) continue;
    SLUICE_TRY_ASSIGN(Case each, checksum_case(options, *engine, place, bytes, name, part, note));
    report.cases.push_back(std::move(each));
  }
  return {};
}

}  // namespace

Result<Report> run_dump(const BenchOptions& options) {
  const std::uint64_t bytes = options.by_scale(16 * kMiB, kGiB, 4 * kGiB);
  Report report{"dump", "memory to durable file, beside the raw disk on new files", {}};
  SLUICE_TRY(add_cases(options, bytes, report));
  if (!on_virtual_machine() && options.wants(kOnVamdgpu))
    SLUICE_TRY(add_vamdgpu_cases(options, "dump", bytes, report));
  return report;
}

}  // namespace sluice::bench
