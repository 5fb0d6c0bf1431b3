// SPDX-License-Identifier: MIT
#include "pipeline/replica/leader_lane.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace sluice {
namespace {

constexpr std::uint64_t kAskPeriodNs = kNsPerSecond / 20;  // how often a waiting thread asks whether to go on

}  // namespace

// Sequentially consistent: either the watcher sees the flag, or this sees the watcher.
void LeaderLane::publish(std::uint64_t chunk) {
  hashed_[static_cast<std::size_t>(chunk)] = true;
  if (watching_ > 0) wake();
}

void LeaderLane::end(std::optional<Complete> complete) {
  {
    const Lock lock(mutex_);
    if (state_ != State::Runs) return;
    if (complete) complete_ = std::move(*complete);
    state_ = complete ? State::Complete : State::Failed;
    world_.wake(ended_);
  }
  wake();
}

void LeaderLane::wake() {
  const Lock lock(mutex_);
  std::erase_if(watchers_, [this](const Watcher& watcher) {
    if (!is_settled(watcher.chunk)) return false;
    (void)::eventfd_write(watcher.event, 1);
    return true;
  });
  watching_ = watchers_.size();
}

bool LeaderLane::has(std::uint64_t file_offset, std::uint64_t bytes) const {
  const std::uint64_t chunk_bytes = files.layout.chunk_bytes();
  for (std::uint64_t chunk = file_offset / chunk_bytes; chunk * chunk_bytes < file_offset + bytes; ++chunk)
    if (!hashed_[static_cast<std::size_t>(chunk)]) return false;
  return true;
}

std::optional<std::uint64_t> LeaderLane::unsettled(std::uint64_t file_offset, std::uint64_t bytes) const {
  const std::uint64_t chunk_bytes = files.layout.chunk_bytes();
  for (std::uint64_t chunk = file_offset / chunk_bytes; chunk * chunk_bytes < file_offset + bytes; ++chunk)
    if (!is_settled(chunk)) return chunk;
  return std::nullopt;
}

bool LeaderLane::watch(std::uint64_t chunk, int event) {
  const Lock lock(mutex_);
  watchers_.push_back({chunk, event});
  watching_ = watchers_.size();
  if (!is_settled(chunk)) return true;
  watchers_.pop_back();
  watching_ = watchers_.size();
  return false;
}

void LeaderLane::forget(int event) {
  const Lock lock(mutex_);
  std::erase_if(watchers_, [event](const Watcher& watcher) { return watcher.event == event; });
  watching_ = watchers_.size();
}

Result<void> LeaderLane::wait_for_end(const std::function<bool()>& gives_up) {
  Lock lock(mutex_);
  while (state_ == State::Runs && !gives_up()) world_.wait(lock, ended_, world_.now_ns() + kAskPeriodNs);
  if (state_ == State::Complete) return {};
  return Error{ECANCELED,
               files.names.front() +
                   ", whose contents this GPU shares, was not completed; its own line says why [SL-C92]"};
}

}  // namespace sluice
