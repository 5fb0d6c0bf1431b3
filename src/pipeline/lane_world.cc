// SPDX-License-Identifier: MIT
#include "pipeline/lane_world.h"

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "pipeline/reactor/uring_reactor.h"
#include "pipeline/slot_workers.h"

namespace sluice {

LaneWorld& LaneWorld::real() {
  static LaneWorld world;
  return world;
}

std::uint64_t LaneWorld::now_ns() {
  return monotonic_ns();
}

void LaneWorld::wait(Lock& lock, std::condition_variable& changed, std::uint64_t end_ns) {
  if (end_ns == kNever) return lock.wait(changed);
  (void)lock.wait_until(changed, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(end_ns)));
}

void LaneWorld::wake(std::condition_variable& changed) {
  changed.notify_all();
}

void LaneWorld::wake_one(std::condition_variable& changed) {
  changed.notify_one();
}

Result<LaneThread> LaneWorld::start_thread(const std::string& name, std::function<Result<void>()> body) {
  return LaneThread::start(name, std::move(body));
}

Result<std::unique_ptr<Reactor>> LaneWorld::make_reactor(unsigned entries, std::span<std::byte> arena,
                                                         std::string& note) {
  return sluice::make_reactor(entries, arena, note);
}

unsigned LaneWorld::spare_workers(std::size_t lanes) {
  return sluice::spare_workers(lanes);
}

void LaneWorld::step(const Pipeline& /*pipeline*/) {}

}  // namespace sluice
