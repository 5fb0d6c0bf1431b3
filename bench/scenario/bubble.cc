// SPDX-License-Identifier: MIT
// The loop alone: three stages of known rates that move no bytes, compared with the least time that such a
// pipeline needs. Any extra time is a bubble: a stage was idle while there was work for it.
//
// The least time is cli/plan/flow_times.h's: the slowest stage for all chunks, plus one chunk's way through
// the other two (fill and drain). Fewer slots take longer only below (sum of the three stages' times for a
// chunk) / (the slowest's), which is at most three.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "cli/plan/flow_times.h"
#include "engine/timed_stage.h"
#include "lane/lane_run.h"
#include "pipeline/arena.h"
#include "pipeline/lane_thread.h"
#include "pipeline/pipeline.h"
#include "pipeline/reactor/uring_reactor.h"
#include "scenario/scenario.h"

namespace sluice::bench {
namespace {

constexpr std::array<double, 3> kRates = {5e9, 10e9, 25e9};  // bytes/s
constexpr std::array<const char*, 3> kNames = {"copy", "checksum", "store"};

struct SlotsInUse {
  std::uint32_t now = 0;
  std::uint32_t most = 0;
};

// A timed stage at an end of the route: counts the slots between the first stage and the last.
class CountedStage final : public Stage {
 public:
  CountedStage(Stage& inner, SlotsInUse& slots, bool first) : inner_(inner), slots_(slots), first_(first) {}

  const char* name() const override { return inner_.name(); }
  Result<Submit> submit(Slot& slot) override {
    if (first_) slots_.most = std::max(slots_.most, ++slots_.now);
    return inner_.submit(slot);
  }
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override {
    if (!first_) --slots_.now;
    return inner_.advance(slot, op, result);
  }

 private:
  Stage& inner_;
  SlotsInUse& slots_;
  bool first_;
};

// A lane of kSlots buffers, and any number of chunks of their size.
class Bench {
 public:
  static Result<Bench> make(std::uint64_t chunk_bytes) {
    SLUICE_TRY_ASSIGN(StagingArena arena, StagingArena::make(chunk_bytes, kSlots, -1));
    return Bench(std::move(arena), chunk_bytes);
  }

  double chunk_seconds(double rate) const { return static_cast<double>(chunk_bytes_) / rate; }
  // That many chunks through all three stages, for the forecast.
  cli::Flow flow(std::uint64_t chunks) const {
    const auto bytes = static_cast<double>(chunk_bytes_);
    return {static_cast<double>(chunks) * bytes, bytes, {{0, 1}, {1, 1}, {2, 1}}};
  }

  // From the first chunk's admission to the last one's end. `rates` of all stages, in the route's order.
  Result<double> seconds(std::span<const double> rates, std::uint32_t slots, std::uint64_t chunks) {
    double seconds = 0;
    SLUICE_TRY_ASSIGN(LaneThread thread, LaneThread::start("bubble", [&]() -> Result<void> {
                        SLUICE_TRY_ASSIGN(seconds, run(rates, slots, chunks));
                        return {};
                      }));
    SLUICE_TRY(thread.join());
    return seconds;
  }

 private:
  Bench(StagingArena arena, std::uint64_t chunk_bytes)
      : arena_(std::move(arena)), chunk_bytes_(chunk_bytes) {}

  Result<double> run(std::span<const double> rates, std::uint32_t slot_count, std::uint64_t chunks) {
    const std::array<std::uint64_t, 1> bos = {chunks * chunk_bytes_ - kHeaderBytes};
    SLUICE_TRY_ASSIGN(const ImageLayout layout, ImageLayout::make(bos, chunk_bytes_));
    std::string note;
    SLUICE_TRY_ASSIGN(const std::unique_ptr<Reactor> reactor,
                      make_reactor(slot_count * static_cast<unsigned>(kOpsPerSlot), arena_.bytes(), note));
    std::vector<Slot> slots = slots_of(arena_);
    slots.resize(slot_count);  // perhaps fewer than there is memory for
    std::vector<std::unique_ptr<TimedStage>> stages;
    for (std::size_t i = 0; i < rates.size(); ++i) {
      SLUICE_TRY_ASSIGN(std::unique_ptr<TimedStage> stage, TimedStage::make(kNames[i], rates[i], *reactor));
      stages.push_back(std::move(stage));
    }
    SlotsInUse in_use;
    CountedStage first(*stages.front(), in_use, true);
    CountedStage last(*stages.back(), in_use, false);
    std::vector<Stage*> route;
    for (const auto& stage : stages) route.push_back(stage.get());
    if (stages.size() > 1) {
      route.front() = &first;
      route.back() = &last;
    }
    Pipeline pipeline(layout, slots, route, *reactor);
    SLUICE_TRY_ASSIGN(const PipelineStats stats, pipeline.run());
    const bool all_served = std::all_of(stages.begin(), stages.end(), [&](const auto& stage) {
      return stage->served_bytes() == layout.file_bytes();
    });
    if (!all_served || stats.chunks != chunks)
      return Error{EIO, "not every chunk went through every stage once"};
    if (in_use.now != 0 || in_use.most > slot_count)
      return Error{EIO, std::to_string(in_use.most) + " slots of " + std::to_string(slot_count) +
                            " were in use, " + std::to_string(in_use.now) + " at the end"};
    return static_cast<double>(stats.elapsed_ns) / 1e9;
  }

  StagingArena arena_;
  std::uint64_t chunk_bytes_;
};

// How late a timer of this machine is, including the loop's share: one stage, one slot, so that each chunk
// waits by itself. In the grid the lateness of one chunk does not delay the next.
Result<Case> timer_case(Bench& bench, std::uint64_t chunks, unsigned count) {
  const double rate = kRates.back();
  std::vector<double> late;
  for (unsigned i = 0; i < count; ++i) {
    SLUICE_TRY_ASSIGN(const double seconds, bench.seconds({&rate, 1}, 1, chunks));
    late.push_back((seconds / static_cast<double>(chunks) - bench.chunk_seconds(rate)) * 1e6);
  }
  return Case{"timer",
              "a chunk's deadline does not depend on when the one before was noticed, so this is paid a few "
              "times in a run, not once a chunk",
              {figure("late", "us", late)}};
}

std::string name_of(std::span<const double> rates) {
  std::string name;
  for (const double rate : rates)
    name += (name.empty() ? "" : "/") + std::to_string(std::llround(rate / 1e9));
  return name;
}

}  // namespace

Result<Report> run_bubble(const BenchOptions& options) {
  const std::uint64_t chunk_bytes = options.by_scale(256 * kKiB, 4 * kMiB, 4 * kMiB);
  const double seconds = options.by_scale(0.002, 0.15, 0.5);  // of each run, about
  const unsigned count = options.by_scale(1u, 5u, 9u);
  SLUICE_TRY_ASSIGN(Bench bench, Bench::make(chunk_bytes));
  Report report{
      "bubble",
      "three stages of 5, 10 and 25 GB/s in every combination (copy/checksum/store), beside the time "
      "of the slowest alone plus one chunk's way through the others",
      {}};
  SLUICE_TRY_ASSIGN(Case timer, timer_case(bench, options.by_scale(20u, 500u, 1000u), count));
  report.cases.push_back(std::move(timer));

  std::vector<std::array<double, 3>> grid;
  for (const double copy : kRates)
    for (const double checksum : kRates)
      for (const double store : kRates)
        if (options.wants(name_of(std::array{copy, checksum, store})))
          grid.push_back({copy, checksum, store});
  std::vector<std::vector<double>> overheads(grid.size());
  for (unsigned i = 0; i < count; ++i) {
    options.tell("round " + std::to_string(i + 1) + " of " + std::to_string(count) + " of the grid");
    for (std::size_t point = 0; point < grid.size(); ++point) {
      const std::array<double, 3>& rates = grid[point];
      const double slowest = bench.chunk_seconds(*std::min_element(rates.begin(), rates.end()));
      const auto chunks = static_cast<std::uint64_t>(std::ceil(seconds / slowest));
      const std::array flows = {bench.flow(chunks)};
      const double ideal = cli::flow_times(rates, flows).seconds;
      SLUICE_TRY_ASSIGN(const double wall, bench.seconds(rates, kSlots, chunks));
      if (wall < 0.999 * ideal) return Error{EIO, name_of(rates) + " was done before its stages could be"};
      overheads[point].push_back(wall / ideal);
    }
  }
  std::size_t worst = 0;
  for (std::size_t point = 0; point < grid.size(); ++point) {
    if (median(overheads[point]) > median(overheads[worst])) worst = point;
    report.cases.push_back({name_of(grid[point]), "", {figure("overhead", "ratio", overheads[point])}});
  }
  report.cases.push_back(
      {"worst", "at " + name_of(grid[worst]), {figure("overhead", "ratio", overheads[worst])}});
  return report;
}

}  // namespace sluice::bench
