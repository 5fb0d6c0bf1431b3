// SPDX-License-Identifier: MIT
#include "plugin/predump/vram_keeper.h"

#include <chrono>
#include <map>

#include "kfd/vram_room.h"
#include "pipeline/lane_world.h"

namespace sluice::plugin {
namespace {

constexpr std::uint64_t kPeriodNs = 20'000'000;
// Of one lane's BOs in one period; examining one takes some microseconds.
constexpr std::size_t kMostLooksAPeriod = 256;
// VRAM is nearly full if less than this part of it is free.
constexpr std::uint64_t kPartLeft = 16;

bool nearly_full(std::uint32_t render_minor) {
  const auto use = kfd::vram_use(render_minor);
  return use && use->room() < use->total_bytes / kPartLeft;
}

}  // namespace

Result<void> VramKeeper::start() {
  look();  // before the job runs again
  SLUICE_TRY_ASSIGN(LaneThread thread, LaneThread::start("sluice-vram", [this]() -> Result<void> {
                      watch();
                      return {};
                    }));
  thread_.emplace(std::move(thread));
  return {};
}

void VramKeeper::stop() {
  if (!thread_) return;
  LaneWorld& world = LaneWorld::real();
  {
    const Lock lock(mutex_);
    stopped_ = true;
    world.wake(changed_);
  }
  (void)thread_->join(LaneThread::Ring::None);
  thread_.reset();
}

void VramKeeper::watch() {
  LaneWorld& world = LaneWorld::real();
  Lock lock(mutex_);
  while (!stopped_) {
    world.wait(lock, changed_, world.now_ns() + kPeriodNs);
    if (stopped_) return;
    lock.unlock();
    look();
    lock.lock();
  }
}

void VramKeeper::look() {
  std::map<std::uint32_t, bool> full;  // by render minor
  for (const auto& bos : all_) {
    const auto [at, is_new] = full.try_emplace(bos->render_minor(), false);
    if (is_new) at->second = nearly_full(bos->render_minor());
    bos->drop_freed(kMostLooksAPeriod);
    if (at->second) bos->drop_all();
  }
}

BoKeeper::Counts VramKeeper::counts() const {
  BoKeeper::Counts sum;
  for (const auto& bos : all_) {
    const BoKeeper::Counts counts = bos->counts();
    sum.freed += counts.freed;
    sum.given_up += counts.given_up;
  }
  return sum;
}

}  // namespace sluice::plugin
