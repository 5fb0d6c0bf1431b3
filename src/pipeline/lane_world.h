// SPDX-License-Identifier: MIT
// The surroundings of a lane and of code that waits for lanes: threads, a reactor, CPUs, time. In production
// the machine's. A simulation passes its own, and the same code runs in virtual time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/mutex.h"
#include "base/result.h"
#include "pipeline/lane_thread.h"
#include "pipeline/reactor/reactor.h"

namespace sluice {

class Pipeline;

// Any thread. The defaults are the real machine's.
class LaneWorld {
 public:
  static constexpr std::uint64_t kNever = UINT64_MAX;

  static LaneWorld& real();

  // The clock for timeouts and patience: base/clock.h.
  virtual std::uint64_t now_ns();
  // Releases `lock` until wake() is called or `end_ns` has come. Wakes spuriously, so call it in a loop.
  virtual void wait(Lock& lock, std::condition_variable& changed, std::uint64_t end_ns = kNever);
  virtual void wake(std::condition_variable& changed);
  virtual void wake_one(std::condition_variable& changed);

  // See LaneThread::start.
  virtual Result<LaneThread> start_thread(const std::string& name, std::function<Result<void>()> body);
  // See sluice::make_reactor; called by the lane's thread.
  virtual Result<std::unique_ptr<Reactor>> make_reactor(unsigned entries, std::span<std::byte> arena,
                                                        std::string& note);
  // See sluice::spare_workers.
  virtual unsigned spare_workers(std::size_t lanes);

  // Called by a lane's thread between any two steps of its loop, for tests that check the invariants.
  virtual void step(const Pipeline& pipeline);

 protected:
  ~LaneWorld() = default;
};

}  // namespace sluice
