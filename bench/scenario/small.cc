// SPDX-License-Identifier: MIT
// Many small BOs beside one BO of the same total, and beside the raw disk: the cost of cutting chunks into
// pieces. The driver's cost per BO (import, map) is not included: engines over plain memory have none.
#include <algorithm>
#include <array>
#include <random>

#include "lane/lane_run.h"
#include "measure/process.h"
#include "measure/raw_disk.h"
#include "scenario/place.h"
#include "scenario/scenario.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kBoUnitBytes = 4 * kKiB;

std::vector<std::uint64_t> small_sizes(std::size_t count) {
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> sizes(count);
  std::generate(sizes.begin(), sizes.end(), [&] { return (random() % 16 + 1) * kBoUnitBytes; });
  return sizes;
}

// One layout of the same bytes, or the raw disk.
struct Way {
  std::string name;
  std::unique_ptr<CopyEngine> engine;  // null: the raw disk
  SumTable sums;
  std::vector<Sample> samples;
};

class Ways {
 public:
  // `touch_bytes`: of free memory before each run.
  Ways(const Place& place, RawDisk& raw, std::uint64_t touch_bytes)
      : place_(place), raw_(raw), touch_bytes_(touch_bytes) {}

  void add(std::string name, std::unique_ptr<CopyEngine> engine) {
    ways_.push_back({std::move(name), std::move(engine), {}, {}});
  }

  // All in turn, starting with another one each time.
  Result<Case> run(Direction direction, const BenchOptions& options, unsigned rounds) {
    const std::string name = direction == Direction::Dump ? "dump" : "restore";
    for (Way& way : ways_) way.samples.clear();
    for (unsigned round = 0; round < rounds; ++round) {
      options.tell(name + ", round " + std::to_string(round + 1) + " of " + std::to_string(rounds));
      for (Way& way : ways_) {
        SLUICE_TRY_ASSIGN(const Sample sample, run_once(way, direction));
        way.samples.push_back(sample);
      }
      std::rotate(ways_.begin(), ways_.begin() + 1, ways_.end());
    }
    return Case{name, "", figures()};
  }

 private:
  Result<Sample> run_once(Way& way, Direction direction) {
    const bool dump = direction == Direction::Dump;
    if (dump && way.engine != nullptr) std::filesystem::remove(place_.file(way.name));
    if (!dump && way.engine != nullptr) SLUICE_TRY(way.engine->scribble());
    place_.settle();
    touch_free_memory(touch_bytes_);
    if (way.engine == nullptr) return dump ? raw_.write() : raw_.read();
    LanePlan plan;
    plan.engine = way.engine.get();
    plan.direction = direction;
    plan.sums = &way.sums;
    plan.directory = place_.fd();
    plan.name = way.name;
    SLUICE_TRY_ASSIGN(const RunResult run, run_lanes({&plan, 1}));
    SLUICE_TRY_ASSIGN(const bool intact, way.engine->intact());
    if (!intact) return Error{EBADMSG, way.name + ": the restored contents are not what was dumped"};
    return run.sample;
  }

  const Way& way(const char* name) const {
    return *std::find_if(ways_.begin(), ways_.end(), [&](const Way& each) { return each.name == name; });
  }
  std::vector<double> values(const char* name, double (Sample::*value)() const) const {
    std::vector<double> all;
    for (const Sample& sample : way(name).samples) all.push_back((sample.*value)());
    return all;
  }
  std::vector<Figure> figures() const {
    const std::vector<double> ours = values("small", &Sample::gbps), one = values("one BO", &Sample::gbps),
                              raw = values("raw", &Sample::gbps);
    return {ratio("ratio", ours, one),
            ratio("ratio to raw", ours, raw),
            figure("ours", "GB/s", ours),
            figure("one BO", "GB/s", one),
            figure("raw", "GB/s", raw),
            figure("cpu", "s/GB", values("small", &Sample::cpu_seconds_per_gb)),
            figure("one BO cpu", "s/GB", values("one BO", &Sample::cpu_seconds_per_gb))};
  }

  const Place& place_;
  RawDisk& raw_;
  std::uint64_t touch_bytes_;
  std::vector<Way> ways_;
};

}  // namespace

Result<Report> run_small(const BenchOptions& options) {
  const std::vector<std::uint64_t> sizes = small_sizes(options.by_scale(1'000u, 30'000u, 100'000u));
  const unsigned rounds = options.by_scale(1u, 5u, 9u);
  Contents small{sizes};
  const std::uint64_t bytes = small.total_bytes();
  SLUICE_TRY_ASSIGN(const Place place, Place::make(options.directory));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<RawDisk> raw,
                    RawDisk::make({{place.file("raw")}, bytes, kChunkBytes, kSlots}));
  Ways ways(place, *raw, options.by_scale(kMiB, 256 * kMiB, 256 * kMiB));
  SLUICE_TRY_ASSIGN(std::unique_ptr<CopyEngine> many, make_memcpy_engine(std::move(small)));
  SLUICE_TRY_ASSIGN(std::unique_ptr<CopyEngine> one, make_memcpy_engine({{bytes}}));
  ways.add("small", std::move(many));
  ways.add("one BO", std::move(one));
  ways.add("raw", nullptr);
  Report report{
      "small",
      std::to_string(sizes.size()) +
          " BOs of 4 KiB to 64 KiB, beside one BO of as many bytes and the raw disk; new files, checksum",
      {}};
  for (const Direction direction : {Direction::Dump, Direction::Restore}) {
    SLUICE_TRY_ASSIGN(Case each, ways.run(direction, options, rounds));
    report.cases.push_back(std::move(each));
  }
  return report;
}

}  // namespace sluice::bench
