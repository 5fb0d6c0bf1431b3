// SPDX-License-Identifier: MIT
#include "scenario/dump_chain.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/image_file.h"
#include "images/sums.h"
#include "measure/clock.h"
#include "measure/page_cache.h"
#include "measure/process.h"
#include "scenario/shape.h"

namespace sluice::bench {
namespace {

class CountingStore final : public Stage {
 public:
  CountingStore(Reactor& reactor, std::uint64_t& bytes) : reactor_(reactor), bytes_(bytes) {}

  const char* name() const override { return "store"; }
  Result<Submit> submit(Slot& slot) override {
    for (std::uint64_t at = 0; at < slot.chunk.length; at += kZeroUnitBytes) {
      const auto unit = static_cast<std::size_t>(at / kZeroUnitBytes);
      if (slot.zero_units[unit] || slot.known_units[unit]) continue;
      bytes_ += std::min(kZeroUnitBytes, slot.chunk.length - at);
    }
    reactor_.post(slot.op(), 0);
    return Submit::Started;
  }
  Result<Progress> advance(Slot& /*slot*/, Op& /*op*/, std::int32_t /*result*/) override {
    return Progress::Done;
  }

 private:
  Reactor& reactor_;
  std::uint64_t& bytes_;
};

}  // namespace

MakeStore counting_store(std::uint64_t& written_bytes) {
  return [&written_bytes](const ImageLayout& /*layout*/, Reactor& reactor) -> Result<std::unique_ptr<Stage>> {
    return std::unique_ptr<Stage>(std::make_unique<CountingStore>(reactor, written_bytes));
  };
}

DumpChain::DumpChain(CopyEngine& engine, const Place& place, unsigned workers)
    : engine_(engine), place_(place), workers_(workers) {}

DumpChain::~DumpChain() {
  remove_all();
}

void DumpChain::remove_all() {
  std::error_code ignored;
  for (const Member& member : members_) {
    (void)std::filesystem::remove(place_.file(member.name), ignored);
    (void)std::filesystem::remove(place_.file(member.name + ".sums"), ignored);
  }
  members_.clear();
}

LanePlan DumpChain::plan() const {
  LanePlan plan;
  plan.engine = &engine_;
  plan.checksum_workers = workers_;
  plan.directory = place_.fd();
  return plan;
}

Result<Sample> DumpChain::dump_full() {
  remove_all();
  return dump(false);
}

Result<Sample> DumpChain::dump_change() {
  return dump(true);
}

Result<Sample> DumpChain::dump(bool with_parent) {
  place_.settle();
  touch_free_memory(kTouchBytes);
  SumTable sums;
  LanePlan each = plan();
  each.name = "dump-" + std::to_string(members_.size()) + ".img";
  each.sums = &sums;
  if (with_parent) each.parent = members_.back().files.get();
  const auto begin = Clock::now();
  const double cpu = process_cpu_seconds();
  SLUICE_TRY_ASSIGN(RunResult run, run_lanes({&each, 1}));
  Member member{each.name, nullptr, {}};
  KnownRuns& runs = run.lanes.front().parent_runs;
  SLUICE_TRY(save_sidecar(member, sums, runs));
  Sample sample = run.sample;
  sample.seconds = seconds_since(begin);
  sample.cpu_seconds = process_cpu_seconds() - cpu - sample.dma_cpu_seconds;
  SLUICE_TRY_ASSIGN(ImageLayout layout, ImageLayout::make(engine_.contents().bo_bytes, kChunkBytes));
  member.files = std::make_unique<const KnownFiles>(std::move(layout), std::vector{std::move(sums)},
                                                    std::vector{each.name});
  members_.push_back(std::move(member));
  SLUICE_TRY_ASSIGN(members_.back().owners, owners_of(runs));
  return sample;
}

Result<void> DumpChain::save_sidecar(const Member& member, const SumTable& sums, KnownRuns runs) const {
  Sidecar sidecar;
  sidecar.tables = {sums};
  sidecar.pages_files = {member.name};
  sidecar.dump_id.fill(1);
  if (!runs.empty()) {
    sidecar.parents.push_back(std::move(runs));
    sidecar.parent_dump_id.fill(2);
  }
  const std::vector<std::uint8_t> bytes = pack_sidecar(sidecar, {});
  const std::string name = member.name + ".sums";
  SLUICE_TRY_ASSIGN(const UniqueFd fd, create_image_file(place_.fd(), name));
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t done = ::write(fd.get(), &bytes[at], bytes.size() - at);
    if (done < 0) return make_error(errno, "write " + name);
    at += static_cast<std::size_t>(done);
  }
  if (::fdatasync(fd.get()) != 0 || ::fsync(place_.fd()) != 0) return make_error(errno, "sync " + name);
  return {};
}

// All members have one layout, so a unit is at the same place in each.
Result<std::vector<std::uint32_t>> DumpChain::owners_of(const KnownRuns& runs) const {
  const KnownFiles& files = *members_.back().files;
  std::vector<std::uint32_t> owners(static_cast<std::size_t>(files.units.count(0)),
                                    static_cast<std::uint32_t>(members_.size() - 1));
  if (runs.empty()) return owners;
  const Member& parent = members_[members_.size() - 2];
  for (const KnownRun& run : runs.runs) {
    const auto first = parent.owners.begin() + static_cast<std::ptrdiff_t>(run.first_unit);
    std::copy(first, first + static_cast<std::ptrdiff_t>(run.units),
              owners.begin() + static_cast<std::ptrdiff_t>(run.first_unit));
  }
  return owners;
}

ExtentMap DumpChain::extents() const {
  const Member& last = members_.back();
  ExtentMap map;
  for (const Member& member : members_)
    map.files.push_back({place_.fd(), member.name, last.files->layout.file_bytes(), member.name, true});
  each_unit(last.files->layout, last.files->units, 0, [&](const SumRange& range) {
    const std::uint32_t owner = last.owners[static_cast<std::size_t>(range.index)];
    if (!map.extents.empty() && map.extents.back().file == owner) {
      map.extents.back().end = range.end;
    } else {
      map.extents.push_back({range.begin, range.end, owner, range.begin});
    }
  });
  return map;
}

Result<Sample> DumpChain::dump_nowhere(bool with_parent, std::uint64_t& written_bytes) {
  touch_free_memory(kTouchBytes);
  written_bytes = 0;
  LanePlan each = plan();
  each.make_store = counting_store(written_bytes);
  if (with_parent) each.parent = members_.back().files.get();
  SLUICE_TRY_ASSIGN(const RunResult run, run_lanes({&each, 1}));
  return run.sample;
}

Result<Sample> DumpChain::predump(std::uint64_t bytes_per_second, bool to_file) {
  std::uint64_t written_bytes = 0;
  LanePlan each = plan();
  each.bytes_per_second = bytes_per_second;
  each.name = "predump.img";
  if (!to_file) each.make_store = counting_store(written_bytes);
  SLUICE_TRY_ASSIGN(const RunResult run, run_lanes({&each, 1}));
  std::error_code ignored;
  (void)std::filesystem::remove(place_.file(each.name), ignored);
  return run.sample;
}

void DumpChain::spoil_last() {
  const KnownFiles& files = *members_.back().files;
  std::vector<SumTable> tables = files.tables;
  for (Sum128& sum : tables.front().sums) sum[0] ^= 1;
  members_.back().files = std::make_unique<const KnownFiles>(files.layout, std::move(tables), files.names);
}

Result<Sample> DumpChain::restore() {
  for (const Member& member : members_) SLUICE_TRY(drop_cached(place_.file(member.name)));
  const Member& last = members_.back();
  SumTable sums = last.files->tables.front();
  const ExtentMap map = extents();
  LanePlan each = plan();
  each.name = last.name;
  each.sums = &sums;
  if (members_.size() > 1) each.extents = &map;
  return checked_restore(each, kTouchBytes);
}

Result<std::uint64_t> DumpChain::disk_bytes(const std::string& name) const {
  std::uint64_t bytes = 0;
  for (const std::string& each : {name, name + ".sums"}) {
    struct stat status {};
    if (::stat(place_.file(each).c_str(), &status) != 0) return make_error(errno, each);
    bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
  }
  return bytes;
}

Result<std::uint64_t> DumpChain::last_bytes() const {
  return disk_bytes(members_.back().name);
}

Result<std::uint64_t> DumpChain::all_bytes() const {
  std::uint64_t sum = 0;
  for (const Member& member : members_) {
    SLUICE_TRY_ASSIGN(const std::uint64_t bytes, disk_bytes(member.name));
    sum += bytes;
  }
  return sum;
}

}  // namespace sluice::bench
