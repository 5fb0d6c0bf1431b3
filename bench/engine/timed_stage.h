// SPDX-License-Identifier: MIT
// A stage that takes the time of a device of a given rate, and moves no bytes. Can replace any stage of a
// route. Thread-bound like every stage.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "base/unique_fd.h"
#include "pipeline/reactor/reactor.h"
#include "pipeline/stage.h"

namespace sluice::bench {

// Serves chunks one after the other, in the order in which they come. Stages of several lanes may share one:
// any thread.
class TimedDevice {
 public:
  // 0: every chunk takes no time.
  explicit TimedDevice(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // When it will have finished a chunk that comes now. Times are of one clock, the reactors', in nanoseconds.
  double serve(std::uint64_t bytes, double now_ns);
  bool at_once() const { return bytes_per_second_ <= 0; }

 private:
  const double bytes_per_second_;
  std::mutex mutex_;
  double free_at_ns_ = 0;  // guarded by the mutex
};

class TimedStage final : public Stage {
 public:
  // Errors of make(): EMFILE.
  static Result<std::unique_ptr<TimedStage>> make(const char* name, std::shared_ptr<TimedDevice> device,
                                                  Reactor& reactor);
  // With its own device.
  static Result<std::unique_ptr<TimedStage>> make(const char* name, double bytes_per_second,
                                                  Reactor& reactor);

  const char* name() const override { return name_; }
  Result<Submit> submit(Slot& slot) override;
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override;

  std::uint64_t served_bytes() const { return served_bytes_; }

 private:
  TimedStage(const char* name, std::shared_ptr<TimedDevice> device, Reactor& reactor, UniqueFd never)
      : name_(name), device_(std::move(device)), reactor_(reactor), never_(std::move(never)) {}

  const char* name_;
  std::shared_ptr<TimedDevice> device_;
  Reactor& reactor_;
  UniqueFd never_;  // an eventfd that nobody writes: waiting for it is a timer
  std::uint64_t served_bytes_ = 0;
};

}  // namespace sluice::bench
