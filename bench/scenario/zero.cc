// SPDX-License-Identifier: MIT
// Zeros: the same number of bytes with and without them, dumped to new files and restored. The seed chooses
// the places. Many runs of a few KiB cover no whole 4 KiB of the file, because the file's header shifts
// everything by 8 bytes.
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <vector>

#include "lane/lane_run.h"
#include "measure/process.h"
#include "scenario/pairs.h"
#include "scenario/place.h"
#include "scenario/scenario.h"
#include "scenario/shape.h"

namespace sluice::bench {
namespace {

struct Mix {
  double zero_share;
  std::uint64_t run_bytes;
};

std::string name_of(const Mix& mix) {
  const std::string share = std::to_string(std::lround(mix.zero_share * 100)) + " % zero";
  if (mix.zero_share == 0) return share;
  return share + ", runs of " +
         (mix.run_bytes < kMiB ? std::to_string(mix.run_bytes / kKiB) + " KiB"
                               : std::to_string(mix.run_bytes / kMiB) + " MiB");
}

std::vector<Mix> mixes(Scale scale) {
  if (scale == Scale::Smoke) return {{0.75, 64 * kKiB}};
  if (scale == Scale::Quick) return {{0.75, 4 * kKiB}, {0.75, kMiB}, {0.75, 64 * kMiB}};
  std::vector<Mix> all = {{0, 0}};
  for (const double share : {0.25, 0.57, 0.75, 0.95}) {
    for (const std::uint64_t run : {4 * kKiB, 64 * kKiB, kMiB, 64 * kMiB}) all.push_back({share, run});
  }
  return all;
}

// One content in one file.
class Subject {
 public:
  Subject(std::unique_ptr<CopyEngine> engine, const Place& place, std::string name)
      : engine_(std::move(engine)), place_(place) {
    plan_.engine = engine_.get();
    plan_.directory = place.fd();
    plan_.name = std::move(name);
    plan_.sums = &sums_;
  }
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;

  // To a new file.
  Result<Sample> dump(bool holes) {
    std::filesystem::remove(path());
    place_.settle();
    plan_.file.holes = holes;
    SLUICE_TRY_ASSIGN(const RunResult run, run_lanes({&plan_, 1}));
    return run.sample;
  }

  Result<Sample> restore() { return checked_restore(plan_, kTouchBytes); }

  // On the disk, in % of the file's bytes.
  Result<double> disk_use() const {
    struct stat status {};
    if (::stat(path().c_str(), &status) != 0) return make_error(errno, path());
    return 100.0 * 512 * static_cast<double>(status.st_blocks) / static_cast<double>(status.st_size);
  }

 private:
  std::filesystem::path path() const { return place_.file(plan_.name); }

  std::unique_ptr<CopyEngine> engine_;
  const Place& place_;
  LanePlan plan_;
  SumTable sums_;
};

Result<Case> mix_case(const BenchOptions& options, const Place& place, const Mix& mix, std::uint64_t bytes,
                      Subject& dense) {
  options.tell(name_of(mix));
  const unsigned count = options.by_scale(1u, 3u, 9u);
  SLUICE_TRY_ASSIGN(std::unique_ptr<CopyEngine> engine,
                    make_memcpy_engine({{bytes}, mix.zero_share, mix.run_bytes, 2}));
  Subject mixed(std::move(engine), place, "mixed.img");
  std::vector<double> disk;
  SLUICE_TRY_ASSIGN(const Pairs dumps, run_pairs(
                                           count, [] { touch_free_memory(kTouchBytes); },
                                           [&]() -> Result<Sample> {
                                             SLUICE_TRY_ASSIGN(const Sample sample, mixed.dump(true));
                                             SLUICE_TRY_ASSIGN(const double use, mixed.disk_use());
                                             disk.push_back(use);
                                             return sample;
                                           },
                                           [&] { return dense.dump(true); }));
  SLUICE_TRY_ASSIGN(const Pairs restores,
                    run_pairs(
                        count, [] {}, [&] { return mixed.restore(); }, [&] { return dense.restore(); }));
  Case each{name_of(mix), "beside a dump of as many bytes without zeros", dumps.figures()};
  for (Figure& figure : each.figures) {
    if (figure.name == "raw") figure.name = "dense";
    if (figure.name == "raw cpu") figure.name = "dense cpu";
  }
  each.figures.push_back(figure("disk", "%", disk));
  each.figures.push_back(ratio("restore ratio", restores.our_gbps(), restores.raw_gbps()));
  each.figures.push_back(figure("restore", "GB/s", restores.our_gbps()));
  return each;
}

}  // namespace

Result<Report> run_zero(const BenchOptions& options) {
  const std::uint64_t bytes = options.by_scale(16 * kMiB, kGiB, 2 * kGiB);
  SLUICE_TRY_ASSIGN(const Place place, Place::make(options.directory));
  SLUICE_TRY_ASSIGN(std::unique_ptr<CopyEngine> engine, make_memcpy_engine({{bytes}}));
  Subject dense(std::move(engine), place, "dense.img");
  Report report{"zero", "memory that is zero in part, beside memory that is not; new files, checksum on", {}};
  for (const Mix& mix : mixes(options.scale)) {
    if (!options.wants(name_of(mix))) continue;
    SLUICE_TRY_ASSIGN(Case each, mix_case(options, place, mix, bytes, dense));
    report.cases.push_back(std::move(each));
  }
  SLUICE_TRY_ASSIGN(Case search, on_off_case(options, "dense data, zero search on / off",
                                             "what the search costs where it finds nothing",
                                             [&](bool on) { return dense.dump(on); }));
  SLUICE_TRY(dense.restore());  // the last one's file
  report.cases.push_back(std::move(search));
  return report;
}

}  // namespace sluice::bench
