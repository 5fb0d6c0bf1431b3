// SPDX-License-Identifier: MIT
// Many lanes at once, as in eight processes with eight GPUs each. On one disk they are compared with one lane
// with all their bytes, on separate sinks with one such lane.
//
// Lanes begin together when all have their buffers; from then on the time counts, on disks until durable.
// Unfairness is measured while all of them run. When the first has finished all its bytes, it is (most -
// least) / mean of what the lanes have finished. Later, slower lanes have the disk to themselves and catch
// up, so a lane's total time would hide the unfairness.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <numeric>

#include "engine/timed_stage.h"
#include "lane/lane_run.h"
#include "measure/process.h"
#include "scenario/place.h"
#include "scenario/scenario.h"

namespace sluice::bench {
namespace {

constexpr double kSinkRate = 2e9;  // bytes/s
constexpr unsigned kSinks = 8;

// Lanes that begin together, and each lane's progress when the first has finished. All lanes' threads call.
class Race {
 public:
  explicit Race(std::size_t lanes) : done_(lanes) {}

  // Adds the lane number `lane` to this race.
  void enter(LanePlan& plan, std::size_t lane) {
    plan.begin = [this] { wait_for_all(); };
    plan.progress = [this, lane](std::uint64_t done, std::uint64_t total) { tell(lane, done, total); };
  }

  // Since all have begun.
  double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }
  // Percent. REQUIRES: all lanes have ended, without an error.
  double unfairness() const {
    const auto [least, most] = std::minmax_element(at_end_.begin(), at_end_.end());
    const auto sum = std::accumulate(at_end_.begin(), at_end_.end(), std::uint64_t{0});
    const double mean = static_cast<double>(sum) / static_cast<double>(at_end_.size());
    return static_cast<double>(*most - *least) / mean * 100;
  }

 private:
  using Clock = std::chrono::steady_clock;

  // If a lane has failed before this point, the others go on without it.
  void wait_for_all() {
    constexpr auto kLongest = std::chrono::seconds(10);
    std::unique_lock lock(mutex_);
    if (++waiting_ == done_.size()) {
      began_ = Clock::now();
      all_there_.notify_all();
    }
    all_there_.wait_for(lock, kLongest, [this] { return waiting_ == done_.size(); });
  }

  void tell(std::size_t lane, std::uint64_t done, std::uint64_t total) {
    const std::lock_guard lock(mutex_);
    done_[lane] = done;
    if (done == total && at_end_.empty()) at_end_ = done_;
  }

  std::mutex mutex_;
  std::condition_variable all_there_;
  std::size_t waiting_ = 0;
  Clock::time_point began_;
  std::vector<std::uint64_t> done_;    // chunks, by lane
  std::vector<std::uint64_t> at_end_;  // when the first lane has finished
};

// Lanes of one size, each with an engine and a file.
struct Group {
  std::unique_ptr<FairShare> disk =
      std::make_unique<FairShare>();  // the lanes' share of the disk, as in the plugin
  std::vector<std::unique_ptr<CopyEngine>> engines;
  std::vector<SumTable> sums;
  std::vector<LanePlan> plans;
  std::uint64_t bytes_per_lane = 0;
  std::vector<double> rates;       // GB/s, and ...
  std::vector<double> unfairness;  // ... percent, of all runs in one direction
};

Result<Group> make_group(const std::string& name, std::size_t lanes, std::uint64_t bytes,
                         double engine_rate) {
  Group group;
  group.bytes_per_lane = bytes;
  group.sums.resize(lanes);
  group.plans.resize(lanes);
  for (std::size_t i = 0; i < lanes; ++i) {
    SLUICE_TRY_ASSIGN(std::unique_ptr<CopyEngine> engine,
                      make_ghost_engine({{bytes - kHeaderBytes}}, engine_rate));
    LanePlan& plan = group.plans[i];
    plan.engine = engine.get();
    plan.sums = &group.sums[i];
    plan.name = name + "-" + std::to_string(i);
    plan.file.share = group.disk.get();
    group.engines.push_back(std::move(engine));
  }
  return group;
}

// All lanes of the group at once.
Result<void> run(Group& group) {
  Race race(group.plans.size());
  for (std::size_t i = 0; i < group.plans.size(); ++i) race.enter(group.plans[i], i);
  SLUICE_TRY_ASSIGN(const RunResult result, run_lanes(group.plans));
  const double seconds = race.seconds();
  for (const LaneResult& lane : result.lanes) {
    if (lane.stats.bytes != group.bytes_per_lane) return Error{EIO, "a lane's bytes do not add up"};
  }
  group.rates.push_back(static_cast<double>(result.sample.bytes) / seconds / 1e9);
  group.unfairness.push_back(race.unfairness());
  return {};
}

// Both in turn: A-B-B-A ...
Result<void> run_pair(unsigned pair, const std::function<Result<void>()>& many,
                      const std::function<Result<void>()>& one) {
  SLUICE_TRY(pair % 2 == 0 ? many() : one());
  return pair % 2 == 0 ? one() : many();
}

// ---- one disk

struct DiskShape {
  std::size_t lanes = 0;
  std::uint64_t bytes_per_lane = 0;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t staging_bytes = 0;
  std::uint64_t touch_bytes = 0;  // of free memory, before each run
};

Result<void> run_on_disk(Group& group, Direction direction, const Place& place, std::uint64_t touch_bytes) {
  for (LanePlan& plan : group.plans) {
    plan.direction = direction;
    plan.directory = place.fd();
    if (direction == Direction::Dump) std::filesystem::remove(place.file(plan.name));
  }
  place.settle();
  touch_free_memory(touch_bytes);
  return run(group);
}

// Dumps, then restores of the last dump with every block compared with its sum.
Result<void> disk_cases(const BenchOptions& options, const DiskShape& shape, Report& report) {
  const unsigned count = options.by_scale(1u, 3u, 9u);
  SLUICE_TRY_ASSIGN(const Place place, Place::make(options.directory));
  SLUICE_TRY_ASSIGN(Group many, make_group("many", shape.lanes, shape.bytes_per_lane, 0));
  SLUICE_TRY_ASSIGN(Group one, make_group("one", 1, shape.lanes * shape.bytes_per_lane, 0));
  for (LanePlan& plan : many.plans) {
    plan.chunk_bytes = shape.chunk_bytes;
    plan.staging_bytes = shape.staging_bytes;
  }
  for (const Direction direction : {Direction::Dump, Direction::Restore}) {
    const bool dump = direction == Direction::Dump;
    if (!options.wants(dump ? "one disk" : "one disk, restore")) continue;
    for (Group* group : {&many, &one}) {
      group->rates.clear();
      group->unfairness.clear();
    }
    for (unsigned i = 0; i < count; ++i) {
      options.tell(std::string(dump ? "one disk" : "one disk, restore") + ", pair " + std::to_string(i + 1) +
                   " of " + std::to_string(count));
      SLUICE_TRY(run_pair(
          i, [&] { return run_on_disk(many, direction, place, shape.touch_bytes); },
          [&] { return run_on_disk(one, direction, place, shape.touch_bytes); }));
    }
    report.cases.push_back(
        {dump ? "one disk" : "one disk, restore",
         std::to_string(shape.lanes) + " lanes with " + std::to_string(shape.staging_bytes / kMiB) +
             " MiB of staging each, beside one with 64 MiB",
         {ratio("ratio", many.rates, one.rates), figure("unfairness", "%", many.unfairness),
          figure("ours", "GB/s", many.rates), figure("one lane", "GB/s", one.rates)}});
  }
  return {};
}

// ---- separate sinks

Result<std::unique_ptr<Stage>> make_sink(const ImageLayout& /*layout*/, Reactor& reactor) {
  SLUICE_TRY_ASSIGN(std::unique_ptr<Stage> stage, TimedStage::make("store", kSinkRate, reactor));
  return stage;
}

Result<Case> sinks_case(const BenchOptions& options) {
  const std::uint64_t bytes = options.by_scale(16 * kMiB, 2 * kGiB, 4 * kGiB);
  const std::uint64_t staging_bytes = options.by_scale(8 * kMiB, 64 * kMiB, 64 * kMiB);
  const unsigned count = options.by_scale(1u, 5u, 9u);
  constexpr double kEngineRate = 25e9;
  SLUICE_TRY_ASSIGN(Group many, make_group("many", kSinks, bytes, kEngineRate));
  SLUICE_TRY_ASSIGN(Group one, make_group("one", 1, bytes, kEngineRate));
  for (Group* group : {&many, &one}) {
    for (LanePlan& plan : group->plans) {
      plan.staging_bytes = staging_bytes;
      plan.make_store = make_sink;
    }
  }
  options.tell("independent sinks");
  for (unsigned i = 0; i < count; ++i) {
    SLUICE_TRY(run_pair(
        i, [&] { return run(many); }, [&] { return run(one); }));
  }
  std::vector<double> eight_alone;
  for (const double rate : one.rates) eight_alone.push_back(rate * kSinks);
  return Case{
      "independent sinks",
      "8 lanes, each with a copy engine of 25 GB/s and a sink of 2 GB/s of its own, checksum on; ratio: to "
      "8 times one such lane",
      {ratio("ratio", many.rates, eight_alone), figure("ours", "GB/s", many.rates),
       figure("one lane", "GB/s", one.rates)}};
}

}  // namespace

Result<Report> run_scale(const BenchOptions& options) {
  // 64 MiB of staging per GPU, divided among the lanes that eight processes have on it.
  const DiskShape shape{
      options.by_scale<std::size_t>(8, 64, 64), options.by_scale(4 * kMiB, 64 * kMiB, 256 * kMiB), kMiB,
      options.by_scale(2 * kMiB, 8 * kMiB, 8 * kMiB), options.by_scale(kMiB, 768 * kMiB, 768 * kMiB)};
  Report report{"scale", "8 GPUs of 8 processes at once, beside one lane", {}};
  SLUICE_TRY(disk_cases(options, shape, report));
  SLUICE_TRY_ASSIGN(Case sinks, sinks_case(options));
  report.cases.push_back(std::move(sinks));
  return report;
}

}  // namespace sluice::bench
