// SPDX-License-Identifier: MIT
// Restore beside the raw disk: both read the same file, outside the page cache.
#include <utility>

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

constexpr const char* kVerifying = ", verifying on / off";
constexpr const char* kKey = ", key on / off";

// The cost of verifying: restores of `plan`'s file with and without it.
Result<Case> verifying_case(const BenchOptions& options, const std::string& name, LanePlan plan) {
  return on_off_case(options, name, "what it costs to compare every block with its checksum",
                     [&](bool on) -> Result<Sample> {
                       plan.checksum = on;
                       return checked_restore(plan, kTouchBytes);
                     });
}

// The cost of a key: restores of one file with sums of both kinds.
Result<Case> key_case(const BenchOptions& options, const std::string& name, LanePlan plan) {
  SLUICE_TRY(load_mac());
  SumTable keyed;
  keyed.method = SumMethod(MacKey{});
  SumTable* const plain = std::exchange(plan.sums, &keyed);
  plan.checksum = true;
  SLUICE_TRY(run_lanes({&plan, 1}));  // the same contents again
  return on_off_case(options, name, "what it costs to compare by a key; the lane hashes",
                     [&](bool on) -> Result<Sample> {
                       plan.sums = on ? &keyed : plain;
                       return checked_restore(plan, kTouchBytes);
                     });
}

// The measurements on the engine that this process can have.
Result<void> add_cases(const BenchOptions& options, std::uint64_t bytes, Report& report) {
  const unsigned count = options.by_scale(1u, 5u, 9u);
  SLUICE_TRY_ASSIGN(const Place place, Place::make(options.directory));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<CopyEngine> engine,
                    on_virtual_machine() ? make_vamdgpu_engine({{bytes}}) : make_memcpy_engine({{bytes}}));
  SumTable sums;
  LanePlan plan = pages_plan(*engine, place, &sums);
  SLUICE_TRY(run_lanes({&plan, 1}));
  place.settle();
  SLUICE_TRY_ASSIGN(const std::unique_ptr<RawDisk> raw,
                    RawDisk::make({{place.file(kPagesName)}, bytes, kChunkBytes, kSlots}));
  for (const bool checksum : {true, false}) {
    if (!checksum && on_virtual_machine()) break;
    Case each{engine->name() + std::string(checksum ? ", every block verified" : ", unverified"), "", {}};
    if (!options.wants(each.name)) continue;
    options.tell(each.name);
    plan.checksum = checksum;
    SLUICE_TRY_ASSIGN(const Pairs pairs, run_pairs(
                                             count, [] {}, [&] { return checked_restore(plan, kTouchBytes); },
                                             [&] {
                                               touch_free_memory(kTouchBytes);
                                               return raw->read();
                                             }));
    each.figures = pairs.figures();
    report.cases.push_back(std::move(each));
  }
  for (const auto make : {verifying_case, key_case}) {
    const std::string name = engine->name() + std::string(make == verifying_case ? kVerifying : kKey);
    if (on_virtual_machine() || !options.wants(name)) continue;
    SLUICE_TRY_ASSIGN(Case each, make(options, name, plan));
    report.cases.push_back(std::move(each));
  }
  return {};
}

}  // namespace

Result<Report> run_restore(const BenchOptions& options) {
  const std::uint64_t bytes = options.by_scale(16 * kMiB, kGiB, 4 * kGiB);
  Report report{"restore", "verified file to memory, beside raw reads of the same file", {}};
  SLUICE_TRY(add_cases(options, bytes, report));
  if (!on_virtual_machine() && options.wants(kOnVamdgpu))
    SLUICE_TRY(add_vamdgpu_cases(options, "restore", bytes, report));
  return report;
}

}  // namespace sluice::bench
