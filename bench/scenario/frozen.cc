// SPDX-License-Identifier: MIT
// How long a job is stopped for a dump that writes only what has changed since the previous one. Compared
// with a full dump, a lane that copies and hashes everything and writes nothing, and bare writes of the
// changed bytes. Then: the cost of a parent that never matches, and restores from chains.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "measure/raw_disk.h"
#include "pipeline/slot_workers.h"
#include "scenario/dump_chain.h"
#include "scenario/link_job.h"
#include "scenario/pairs.h"
#include "scenario/place.h"
#include "scenario/scenario.h"
#include "scenario/shape.h"
#include "scenario/vamdgpu_cases.h"
#include "settings/config.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kAnyRun = UINT64_MAX - kMiB + 1;  // everything that changes is one run

// What changes between two dumps.
struct Change {
  double share = 0;  // of all bytes
  std::uint64_t run_bytes = kAnyRun;

  std::string words() const {
    const std::string part = std::to_string(std::lround(share * 100)) + " % changed";
    if (share == 0 || share == 1) return part;
    return part + (run_bytes == kAnyRun ? " in one run"
                                        : " in runs of " + std::to_string(run_bytes / kMiB) + " MiB");
  }
};

std::vector<Change> changes(const BenchOptions& options) {
  const std::vector<Change> few = {{0.05, kMiB}, {0.05, 64 * kMiB}, {0.05, kAnyRun}};
  if (options.scale == Scale::Smoke || on_virtual_machine()) return few;
  std::vector<Change> all = {{0}, {0.01, kMiB}};
  all.insert(all.end(), few.begin(), few.end());
  all.insert(all.end(), {{0.20, 64 * kMiB}, {1}});
  if (options.scale == Scale::Full) all.insert(all.end(), {{0.01, 64 * kMiB}, {0.20, kMiB}});
  return all;
}

// One engine, its measuring tools, and the place.
class Frozen {
 public:
  Frozen(const BenchOptions& options, CopyEngine& engine, const Place& place, unsigned rounds)
      : options_(options), engine_(engine), place_(place), rounds_(rounds) {}

  Result<Case> dumps(const Change& change);
  Result<Case> never_matches();
  Result<Case> chain_of_three(std::uint64_t run_bytes);
  Result<Case> ten_dumps(std::uint64_t run_bytes);
  enum class Pace : std::uint8_t { Default, None };
  Result<Case> beside_a_job(Pace pace, bool to_file);

 private:
  std::string name(const std::string& what) const { return engine_.name() + (", " + what); }
  std::uint64_t bytes() const { return engine_.contents().total_bytes(); }
  DumpChain chain() const { return DumpChain(engine_, place_, spare_workers(1)); }
  // The job works: other ranges each time.
  Result<void> work(const Change& change) {
    ++seed_;
    return engine_.change(some_ranges(bytes(), change.share, change.run_bytes, seed_), seed_);
  }
  // Bare writes of that many bytes to a new file.
  Result<double> write_seconds(std::uint64_t written, std::uint64_t run_bytes) const;

  const BenchOptions& options_;
  CopyEngine& engine_;
  const Place& place_;
  const unsigned rounds_;
  std::uint64_t seed_ = 0;
};

Result<double> Frozen::write_seconds(std::uint64_t written, std::uint64_t run_bytes) const {
  const std::uint64_t block = std::min(kChunkBytes, run_bytes);
  if (written < block) return 0;
  SLUICE_TRY_ASSIGN(const std::unique_ptr<RawDisk> raw,
                    RawDisk::make({{place_.file("raw")}, written, block, kSlots}));
  SLUICE_TRY_ASSIGN(const Sample sample, raw->write());
  raw->remove();
  return sample.seconds;
}

double per_gb(double seconds, std::uint64_t bytes) {
  return seconds / (static_cast<double>(bytes) / 1e9);
}

Result<Case> Frozen::dumps(const Change& change) {
  Case each{name(change.words()), "", {}};
  if (!options_.wants(each.name)) return each;
  options_.tell(each.name);
  DumpChain dumps = chain();
  std::vector<double> frozen, full, floor, sum, written, cpu, full_cpu, shorter;
  for (unsigned round = 0; round < rounds_; ++round) {
    SLUICE_TRY_ASSIGN(const Sample all, dumps.dump_full());
    SLUICE_TRY(work(change));
    SLUICE_TRY_ASSIGN(const Sample changed, dumps.dump_change());
    SLUICE_TRY_ASSIGN(const std::uint64_t on_disk, dumps.last_bytes());
    std::uint64_t counted = 0;
    SLUICE_TRY_ASSIGN(const Sample nowhere, dumps.dump_nowhere(false, counted));
    const auto what = static_cast<std::uint64_t>(std::lround(static_cast<double>(bytes()) * change.share));
    SLUICE_TRY_ASSIGN(const double writing, write_seconds(what, change.run_bytes));
    frozen.push_back(changed.seconds);
    full.push_back(all.seconds);
    shorter.push_back(all.seconds / changed.seconds);
    floor.push_back(std::max(nowhere.seconds, writing));
    sum.push_back(nowhere.seconds + writing);
    written.push_back(100 * static_cast<double>(on_disk) / static_cast<double>(bytes()));
    cpu.push_back(per_gb(changed.cpu_seconds, bytes()));
    full_cpu.push_back(per_gb(all.cpu_seconds, bytes()));
  }
  SLUICE_TRY(dumps.restore());  // compared
  each.figures = {figure("frozen", "s", frozen),
                  figure("full dump", "s", full),
                  figure("shorter", "ratio", shorter),
                  figure("written", "%", written),
                  ratio("of the larger", frozen, floor),
                  ratio("of the sum", frozen, sum),
                  figure("larger", "s", floor),
                  figure("sum", "s", sum),
                  figure("cpu", "s/GB", cpu),
                  figure("full cpu", "s/GB", full_cpu)};
  return each;
}

Result<Case> Frozen::never_matches() {
  Case each{name("a parent that never matches, null sink"), "with it / without", {}};
  if (!options_.wants(each.name)) return each;
  options_.tell(each.name);
  DumpChain dumps = chain();
  SLUICE_TRY(dumps.dump_full());
  dumps.spoil_last();
  std::uint64_t with_bytes = 0, without_bytes = 0;
  SLUICE_TRY_ASSIGN(const Pairs pairs, run_pairs(
                                           options_.by_scale(1u, 9u, 15u), [] {},
                                           [&] { return dumps.dump_nowhere(true, with_bytes); },
                                           [&] { return dumps.dump_nowhere(false, without_bytes); }));
  each.figures = cost_figures(pairs, with_bytes, without_bytes);
  return each;
}

Result<Case> Frozen::chain_of_three(std::uint64_t run_bytes) {
  const Change change{0.05, run_bytes};
  Case each{name("restore from a chain of three, runs of " + std::to_string(run_bytes / kMiB) + " MiB"),
            "5 % changed twice; cold; beside a restore of a full dump of the same",
            {}};
  if (!options_.wants(each.name)) return each;
  options_.tell(each.name);
  SLUICE_TRY_ASSIGN(const Place apart, Place::make(options_.directory));
  DumpChain three = chain();
  SLUICE_TRY(three.dump_full());
  for (int i = 0; i < 2; ++i) {
    SLUICE_TRY(work(change));
    SLUICE_TRY(three.dump_change());
  }
  DumpChain one(engine_, apart, spare_workers(1));
  SLUICE_TRY(one.dump_full());
  SLUICE_TRY_ASSIGN(const Pairs pairs,
                    run_pairs(
                        rounds_, [] {}, [&] { return three.restore(); }, [&] { return one.restore(); }));
  each.figures = pairs.figures();
  for (Figure& figure : each.figures) {
    if (figure.name == "raw") figure.name = "full";
    if (figure.name == "raw cpu") figure.name = "full cpu";
  }
  return each;
}

Result<Case> Frozen::ten_dumps(std::uint64_t run_bytes) {
  Case each{name("ten dumps, 5 % changed in each, runs of " + std::to_string(run_bytes / kMiB) + " MiB"),
            "space: of all, beside the first",
            {}};
  if (!options_.wants(each.name)) return each;
  options_.tell(each.name);
  DumpChain ten = chain();
  SLUICE_TRY(ten.dump_full());
  SLUICE_TRY_ASSIGN(const std::uint64_t first, ten.last_bytes());
  for (int i = 1; i < 10; ++i) {
    SLUICE_TRY(work({0.05, run_bytes}));
    SLUICE_TRY(ten.dump_change());
  }
  SLUICE_TRY_ASSIGN(const std::uint64_t all, ten.all_bytes());
  SLUICE_TRY_ASSIGN(const Sample restored, ten.restore());
  each.figures = {figure("space", "ratio", {static_cast<double>(all) / static_cast<double>(first)}),
                  figure("restore", "GB/s", {restored.gbps()})};
  return each;
}

// How much slower a job becomes that uses the link for half of its time.
Result<Case> Frozen::beside_a_job(Pace pace, bool to_file) {
  Case each{name(std::string("a job beside a pre-dump, ") +
                 (pace == Pace::Default ? "default rate" : "no limit") + (to_file ? ", to a file" : "")),
            to_file ? "" : "to nowhere, as to a disk that takes any rate",
            {}};
  if (!options_.wants(each.name)) return each;
  options_.tell(each.name);
  DumpChain dumps = chain();
  SLUICE_TRY_ASSIGN(const std::unique_ptr<LinkJob> job, LinkJob::start(engine_));
  // A link that is slower than a real one gets less, in proportion.
  const auto tenth = static_cast<std::uint64_t>(job->link_rate() / 10);
  const std::uint64_t bytes_per_second =
      pace == Pace::None ? 0 : std::min(settings::Config().predump_bytes_per_second, tenth);
  std::vector<double> alone, beside, rate;
  const auto seconds = options_.by_scale(0.01, 1.0, 2.0);
  const auto predump = [&]() -> Result<void> {
    SLUICE_TRY_ASSIGN(const Sample copied, dumps.predump(bytes_per_second, to_file));
    rate.push_back(copied.gbps());
    return {};
  };
  for (unsigned round = 0; round < rounds_; ++round) {
    SLUICE_TRY_ASSIGN(const double one, steps_per_second(*job, seconds));
    SLUICE_TRY_ASSIGN(const double other, steps_per_second(*job, seconds, predump));
    alone.push_back(one);
    beside.push_back(other);
  }
  const double link = job->link_rate();
  SLUICE_TRY(job->stop());
  each.figures = {ratio("slower", alone, beside), figure("job alone", "steps/s", alone),
                  figure("job beside", "steps/s", beside), figure("pre-dump", "GB/s", rate),
                  figure("link", "GB/s", {link / 1e9})};
  return each;
}

// All measurements on one engine.
Result<void> add_cases(const BenchOptions& options, CopyEngine& engine, unsigned rounds, Report& report) {
  SLUICE_TRY_ASSIGN(const Place place, Place::make(options.directory));
  Frozen frozen(options, engine, place, rounds);
  // Short ones first: where the disk is slow, the others take ten minutes.
  std::vector<std::function<Result<Case>()>> cases;
  if (!on_virtual_machine()) {
    cases = {[&] { return frozen.beside_a_job(Frozen::Pace::Default, false); },
             [&] { return frozen.beside_a_job(Frozen::Pace::Default, true); },
             [&] { return frozen.beside_a_job(Frozen::Pace::None, false); },
             [&] { return frozen.ten_dumps(kMiB); }};
  }
  for (const Change& change : changes(options)) cases.push_back([&, change] { return frozen.dumps(change); });
  cases.insert(cases.end(),
               {[&] { return frozen.never_matches(); }, [&] { return frozen.chain_of_three(64 * kMiB); },
                [&] { return frozen.chain_of_three(kMiB); }});
  for (const auto& run : cases) {
    SLUICE_TRY_ASSIGN(Case each, run());
    if (!each.figures.empty()) add_case(options, report, std::move(each));
  }
  return {};
}

}  // namespace

Result<Report> run_frozen(const BenchOptions& options) {
  const std::uint64_t bytes = options.by_scale(16 * kMiB, kGiB, 4 * kGiB);
  Report report{
      "frozen", "dumps that write only what has changed, beside full ones; to durable, with all sums", {}};
  {
    SLUICE_TRY_ASSIGN(const std::unique_ptr<CopyEngine> engine,
                      on_virtual_machine() ? make_vamdgpu_engine({{bytes}}) : make_memcpy_engine({{bytes}}));
    SLUICE_TRY(add_cases(options, *engine, options.by_scale(1u, 3u, 9u), report));
  }
  if (!on_virtual_machine() && options.wants(kOnVamdgpu))
    SLUICE_TRY(add_vamdgpu_cases(options, "frozen", bytes, report));
  return report;
}

Result<Report> run_frozen_cuda(const BenchOptions& options) {
  SLUICE_TRY(cuda::load());
  Report report{"frozen-cuda", "the same with a real GPU's memory", {}};
  const std::uint64_t bytes = options.by_scale(16 * kMiB, 16 * kGiB, 16 * kGiB);
  SLUICE_TRY_ASSIGN(const std::unique_ptr<CopyEngine> engine, make_cuda_engine({{bytes}}, 0));
  SLUICE_TRY(add_cases(options, *engine, options.by_scale(1u, 2u, 3u), report));
  return report;
}

}  // namespace sluice::bench
