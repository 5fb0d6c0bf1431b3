// SPDX-License-Identifier: MIT
// What more memory gains. First a BO far larger than the machine's memory, under a limit of 128 MiB, and the
// memory of its checksums; then the rate of dump and restore by size of pool and chunk.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "engine/timed_stage.h"
#include "lane/lane_run.h"
#include "measure/memory_limit.h"
#include "measure/process.h"
#include "scenario/place.h"
#include "scenario/scenario.h"
#include "scenario/shape.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kTiB = 1024 * kGiB;
constexpr std::uint64_t kLimitBytes = 128 * kMiB;
// Bytes of checksums that a dump keeps until its end, for each MiB: a sum of a block, and of 16 units.
constexpr std::uint64_t kSumBytesOfMiB = 17 * sizeof(Sum128);

double in_mib(std::uint64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(kMiB);
}

// ---- one huge BO

struct Huge {
  std::uint64_t bytes = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t staging_bytes = 0;
  bool checksum = false;

  std::uint64_t limit_bytes() const { return kLimitBytes + (checksum ? bytes / kMiB * kSumBytesOfMiB : 0); }
};

// The child's report on its dump. Crosses a pipe.
struct Outcome {
  double seconds = 0;
  std::uint64_t resident_bytes = 0;  // peak, including memory shared with the parent
  std::array<char, 240> error{};     // empty: none
};

std::string limit_text(const Huge& huge) {
  return std::to_string(huge.limit_bytes() / kMiB) + " MiB";
}

Result<Outcome> dump_huge(const Huge& huge, const MemoryLimit* limit) {
  if (limit != nullptr) SLUICE_TRY(limit->join());
  reset_resident_peak();
  SLUICE_TRY_ASSIGN(const std::unique_ptr<CopyEngine> engine,
                    make_ghost_engine({{huge.bytes - kHeaderBytes}}, 0));
  LanePlan plan;
  plan.engine = engine.get();
  plan.chunk_bytes = huge.chunk_bytes;
  plan.staging_bytes = huge.staging_bytes;
  plan.checksum = huge.checksum;
  SumTable sums;
  plan.sums = &sums;
  plan.make_store = [](const ImageLayout& /*layout*/, Reactor& reactor) -> Result<std::unique_ptr<Stage>> {
    SLUICE_TRY_ASSIGN(std::unique_ptr<Stage> stage, TimedStage::make("store", 0, reactor));
    return stage;
  };
  SLUICE_TRY_ASSIGN(const RunResult run, run_lanes({&plan, 1}));
  if (run.lanes.front().stats.bytes != huge.bytes) return Error{EIO, "the dump's bytes do not add up"};
  return Outcome{run.sample.seconds, resident_peak_bytes(), {}};
}

// In a child, so that limit and peak are not this process'. REQUIRES: no other thread runs.
Result<Outcome> dump_huge_apart(const Huge& huge, const MemoryLimit* limit) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return make_error(errno, "pipe");
  UniqueFd from(ends[0]), to(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return make_error(errno, "fork");
  if (child == 0) {
    Outcome outcome;
    if (Result<Outcome> result = dump_huge(huge, limit); result) {
      outcome = *result;
    } else {
      (void)std::strncpy(outcome.error.data(), result.error().what.c_str(), outcome.error.size() - 1);
    }
    const bool told = ::write(to.get(), &outcome, sizeof outcome) == sizeof outcome;
    ::_exit(told ? 0 : 1);
  }
  to.reset();
  Outcome outcome;
  const bool told = ::read(from.get(), &outcome, sizeof outcome) == sizeof outcome;
  int status = 0;
  (void)::waitpid(child, &status, 0);
  if (WIFSIGNALED(status))
    return Error{ENOMEM, "the dump of a huge BO was killed by signal " + std::to_string(WTERMSIG(status)) +
                             (limit != nullptr ? ": it has a limit of " + limit_text(huge) : "")};
  if (!told) return Error{EIO, "the dump of a huge BO told nothing"};
  if (outcome.error[0] != '\0') return Error{EIO, outcome.error.data()};
  return outcome;
}

constexpr const char* kHugeWithSums = "1 TiB BO, checksum";

Result<Case> huge_case(const BenchOptions& options, bool checksum) {
  Huge huge;  // the sums of a TiB take most of a minute
  huge.bytes = checksum ? options.by_scale(64 * kMiB, 16 * kGiB, kTiB) : options.by_scale(kGiB, kTiB, kTiB);
  huge.chunk_bytes = options.by_scale(kMiB, 4 * kMiB, 4 * kMiB);
  huge.staging_bytes = options.by_scale(4 * kMiB, 64 * kMiB, 64 * kMiB);
  huge.checksum = checksum;
  Case each{checksum ? kHugeWithSums : "1 TiB BO", "", {}};
  options.tell(each.name);
  if (huge.bytes < kTiB) each.note = "of " + std::to_string(huge.bytes / kMiB) + " MiB only, at this scale; ";
  Result<MemoryLimit> limit = MemoryLimit::make(huge.limit_bytes());
  each.note += limit ? "under a limit of " + limit_text(huge) + " kept by the kernel, without swap"
                     : "without a limit, so its peak is no proof: " + limit.error().what;
  SLUICE_TRY_ASSIGN(const Outcome outcome, dump_huge_apart(huge, limit ? &*limit : nullptr));
  each.figures = {figure("resident", "MiB", {in_mib(outcome.resident_bytes)}),
                  figure("seconds", "s", {outcome.seconds})};
  if (limit) {
    const std::uint64_t counted = limit->peak_bytes();
    each.figures.push_back(figure("peak", "MiB", {in_mib(counted > 0 ? counted : outcome.resident_bytes)}));
  }
  return each;
}

// ---- pools and chunks

struct Setting {
  std::string name;
  std::uint64_t staging_bytes = 0;
  std::uint64_t chunk_bytes = 0;
  std::vector<Sample> dumps, restores;
};

Result<void> dump_and_restore(const BenchOptions& options, const Place& place, CopyEngine& engine,
                              Setting& setting) {
  const std::uint64_t touch_bytes = options.scale == Scale::Smoke ? 0 : 256 * kMiB + setting.staging_bytes;
  SumTable sums;
  LanePlan plan = pages_plan(engine, place, &sums);
  plan.chunk_bytes = setting.chunk_bytes;
  plan.staging_bytes = setting.staging_bytes;
  std::filesystem::remove(place.file(kPagesName));  // a new file each time
  place.settle();
  touch_free_memory(touch_bytes);
  SLUICE_TRY_ASSIGN(const RunResult dump, run_lanes({&plan, 1}));
  setting.dumps.push_back(dump.sample);
  SLUICE_TRY_ASSIGN(const Sample restore, checked_restore(plan, touch_bytes));
  setting.restores.push_back(restore);
  return {};
}

std::vector<double> gbps(const std::vector<Sample>& samples) {
  std::vector<double> values(samples.size());
  std::transform(samples.begin(), samples.end(), values.begin(), [](const Sample& s) { return s.gbps(); });
  return values;
}

// One direction of all settings, beside the setting named `base`. The best of several noisy figures would be
// faster than any setting is.
void add_cases(Report& report, const std::vector<Setting>& settings, const std::string& base,
               std::vector<Sample> Setting::*samples, const std::string& suffix) {
  const auto of_base = std::find_if(settings.begin(), settings.end(),
                                    [&](const Setting& setting) { return setting.name == base; });
  const std::vector<double> base_rates = gbps((*of_base).*samples);
  for (const Setting& setting : settings) {
    const std::vector<double> rates = gbps(setting.*samples);
    std::vector<double> cpu;
    for (const Sample& sample : setting.*samples) cpu.push_back(sample.cpu_seconds_per_gb());
    report.cases.push_back({setting.name + suffix,
                            "",
                            {ratio("ratio", rates, base_rates), figure("ours", "GB/s", rates),
                             figure("cpu", "s/GB", std::move(cpu))}});
  }
}

// Rounds of all settings, forwards and backwards in turn: a drift of the machine affects all equally.
Result<void> compare(const BenchOptions& options, const std::string& what, const std::string& base,
                     std::vector<Setting> settings, const Place& place, CopyEngine& engine, Report& report) {
  const unsigned rounds = options.by_scale(1u, 3u, 9u);
  for (unsigned round = 0; round < rounds; ++round) {
    options.tell(what + ", round " + std::to_string(round + 1) + " of " + std::to_string(rounds));
    for (Setting& setting : settings) SLUICE_TRY(dump_and_restore(options, place, engine, setting));
    std::reverse(settings.begin(), settings.end());
  }
  if (rounds % 2 == 1) std::reverse(settings.begin(), settings.end());
  add_cases(report, settings, base, &Setting::dumps, "");
  add_cases(report, settings, base, &Setting::restores, ", restore");
  return {};
}

std::string name_of(const char* what, std::uint64_t bytes) {
  return std::string(what) + " " + std::to_string(bytes / kMiB) + " MiB";
}

}  // namespace

Result<Report> run_memory(const BenchOptions& options) {
  Report report{
      "memory",
      "a BO larger than all memory, and rates by size of pool and chunk; ratio: to a pool of 256 MiB, and to "
      "chunks of 4 MiB",
      {}};
  for (const bool checksum : {false, true}) {
    if (checksum && !options.wants(kHugeWithSums)) continue;
    SLUICE_TRY_ASSIGN(Case each, huge_case(options, checksum));
    report.cases.push_back(std::move(each));
  }
  const std::uint64_t bytes = options.by_scale(8 * kMiB, kGiB, 4 * kGiB);
  SLUICE_TRY_ASSIGN(const Place place, Place::make(options.directory));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<CopyEngine> engine, make_memcpy_engine({{bytes}}));
  std::vector<Setting> pools, chunks;
  const std::string base_pool = name_of("pool", 256 * kMiB), base_chunk = name_of("chunk", 4 * kMiB);
  for (const std::uint64_t mib : {16, 32, 64, 128, 256, 512}) {
    const std::string name = name_of("pool", mib * kMiB);
    if (options.wants(name) || name == base_pool) pools.push_back({name, mib * kMiB, 4 * kMiB, {}, {}});
  }
  SLUICE_TRY(compare(options, "pools", base_pool, std::move(pools), place, *engine, report));
  if (!options.wants(base_chunk)) return report;
  for (const std::uint64_t mib : {1, 2, 4, 8})
    chunks.push_back({name_of("chunk", mib * kMiB), 64 * kMiB, mib * kMiB, {}, {}});
  SLUICE_TRY(compare(options, "chunks", base_chunk, std::move(chunks), place, *engine, report));
  return report;
}

}  // namespace sluice::bench
