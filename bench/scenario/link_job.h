// SPDX-License-Identifier: MIT
// A job that uses a GPU's link for half of its time: it copies a part of the BOs into memory of its own, then
// computes for as long as the copy takes where nobody else copies, and so on.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "engine/copy_engine.h"
#include "pipeline/lane_thread.h"

namespace sluice::bench {

class LinkJob {
 public:
  // Begins to work in a thread of its own, when it is known how long a copy takes. `engine` is borrowed, and
  // its stages can be used for more than one run (not vamdgpu's).
  static Result<std::unique_ptr<LinkJob>> start(CopyEngine& engine);
  ~LinkJob();  // stops
  LinkJob(const LinkJob&) = delete;
  LinkJob& operator=(const LinkJob&) = delete;

  // Steps done so far: a copy and what is computed after it.
  std::uint64_t steps() const { return steps_; }
  // Of its copies alone, in bytes a second: what one that waits for each copy gets of the link.
  double link_rate() const { return link_rate_; }
  // A copy has failed: there are no more steps.
  bool ended() const { return ended_; }
  // Errors: those of the copies.
  Result<void> stop();

 private:
  LinkJob(CopyEngine& engine, double compute_rate) : engine_(engine), compute_rate_(compute_rate) {}
  static Result<std::unique_ptr<LinkJob>> start(CopyEngine& engine, double compute_rate);
  Result<void> work();

  CopyEngine& engine_;
  const double compute_rate_;  // bytes a second; 0: nothing is computed
  double link_rate_ = 0;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> ended_{false};
  std::atomic<std::uint64_t> steps_{0};
  std::optional<LaneThread> thread_;
};

// Steps a second while `beside` is called again and again: for so many seconds, and until there was a step.
// Errors: those of `beside`.
Result<double> steps_per_second(const LinkJob& job, double seconds,
                                const std::function<Result<void>()>& beside);
// The same with nothing beside it.
Result<double> steps_per_second(const LinkJob& job, double seconds);

}  // namespace sluice::bench
