// SPDX-License-Identifier: MIT
// A stage that takes the time a device of a given rate would take, and moves no bytes: chunks are served one
// after the other, however many wait. Stands for any stage of a route. Thread-bound like every stage.
#pragma once

#include <cstdint>
#include <memory>

#include "pipeline/reactor.h"
#include "pipeline/stage.h"
#include "pipeline/unique_fd.h"

namespace sluice::bench {

class TimedStage final : public Stage {
 public:
  // `bytes_per_second` 0: every chunk is done at once. Errors of make(): EMFILE.
  static Result<std::unique_ptr<TimedStage>> make(const char* name, double bytes_per_second,
                                                  Reactor& reactor);

  const char* name() const override { return name_; }
  Result<Submit> submit(Slot& slot) override;
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override;

  std::uint64_t served_bytes() const { return served_bytes_; }
  double busy_seconds() const { return busy_ns_ / 1e9; }  // time the device needed for what it served

 private:
  TimedStage(const char* name, double bytes_per_second, Reactor& reactor, UniqueFd never)
      : name_(name), bytes_per_second_(bytes_per_second), reactor_(reactor), never_(std::move(never)) {}

  const char* name_;
  double bytes_per_second_;
  Reactor& reactor_;
  UniqueFd never_;  // an eventfd that nobody writes: waiting for it is a timer
  double free_at_ns_ = 0;
  double busy_ns_ = 0;
  std::uint64_t served_bytes_ = 0;
};

}  // namespace sluice::bench
