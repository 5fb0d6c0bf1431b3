// SPDX-License-Identifier: MIT
#include "scenario/link_job.h"

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/units.h"
#include "engine/timed_stage.h"
#include "measure/clock.h"
#include "pipeline/arena.h"
#include "pipeline/lane_world.h"
#include "pipeline/pipeline.h"
#include "pipeline/slot.h"

namespace sluice::bench {
namespace {

constexpr std::uint64_t kStepBytes = 16 * kMiB;
constexpr double kLearnSeconds = 0.5;

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace

Result<double> steps_per_second(const LinkJob& job, double seconds,
                                const std::function<Result<void>()>& beside) {
  const std::uint64_t before = job.steps();
  const auto begin = Clock::now();
  do {
    SLUICE_TRY(beside());
  } while (!job.ended() && (seconds_since(begin) < seconds || job.steps() == before));
  return static_cast<double>(job.steps() - before) / seconds_since(begin);
}

Result<double> steps_per_second(const LinkJob& job, double seconds) {
  return steps_per_second(job, seconds, [seconds]() -> Result<void> {
    sleep_for(seconds);
    return {};
  });
}

Result<std::unique_ptr<LinkJob>> LinkJob::start(CopyEngine& engine, double compute_rate) {
  std::unique_ptr<LinkJob> job(new LinkJob(engine, compute_rate));
  SLUICE_TRY_ASSIGN(LaneThread thread, LaneThread::start("job", [&its = *job]() -> Result<void> {
                      Result<void> worked = its.work();
                      its.ended_ = true;
                      return worked;
                    }));
  job->thread_.emplace(std::move(thread));
  while (job->steps() == 0 && !job->ended_) sleep_for(0.001);
  if (job->ended_) SLUICE_TRY(job->stop());
  return job;
}

Result<std::unique_ptr<LinkJob>> LinkJob::start(CopyEngine& engine) {
  SLUICE_TRY_ASSIGN(const std::unique_ptr<LinkJob> copies, start(engine, 0));
  SLUICE_TRY_ASSIGN(const double steps, steps_per_second(*copies, kLearnSeconds));
  const double rate = steps * static_cast<double>(kStepBytes);
  SLUICE_TRY(copies->stop());
  SLUICE_TRY_ASSIGN(std::unique_ptr<LinkJob> job, start(engine, rate));
  job->link_rate_ = rate;
  return job;
}

LinkJob::~LinkJob() {
  (void)stop();
}

Result<void> LinkJob::stop() {
  stopped_ = true;
  if (!thread_) return {};
  Result<void> worked = thread_->join();
  thread_.reset();
  return worked;
}

// One slot: what a copy brings is computed with before the next begins.
Result<void> LinkJob::work() {
  SLUICE_TRY_ASSIGN(const ImageLayout layout, ImageLayout::make(engine_.contents().bo_bytes, kStepBytes));
  SLUICE_TRY_ASSIGN(StagingArena arena, StagingArena::make(kStepBytes, 1, engine_.numa_node()));
  std::vector<Slot> slots = slots_of(arena);
  std::string note;
  SLUICE_TRY_ASSIGN(const std::unique_ptr<Reactor> reactor,
                    LaneWorld::real().make_reactor(kOpsPerSlot, arena.bytes(), note));
  const ArenaKeeper keeper(arena, *reactor);
  SLUICE_TRY_ASSIGN(const std::unique_ptr<Stage> copy,
                    engine_.make_stage(Direction::Dump, layout, arena, slots, *reactor));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<TimedStage> compute,
                    TimedStage::make("compute", compute_rate_, *reactor));
  const std::array<Stage*, 2> route{copy.get(), compute.get()};
  while (!stopped_) {
    Pipeline pass(layout, slots, route, *reactor);
    const auto ran =
        pass.run([this](std::uint64_t, std::uint64_t) { ++steps_; }, [this] { return stopped_.load(); });
    if (!ran && !stopped_) return ran.error();
  }
  return {};
}

}  // namespace sluice::bench
