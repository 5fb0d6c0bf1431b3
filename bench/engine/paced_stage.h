// SPDX-License-Identifier: MIT
// A copy stage that keeps to a rate, as drm::SdmaCopy does for a pre-dump (SLUICE_PREDUMP_RATE), around one
// that does not. Thread-bound like every stage.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/unique_fd.h"
#include "pipeline/reactor/reactor.h"
#include "pipeline/stage.h"

namespace sluice::bench {

class PacedStage final : public Stage {
 public:
  // `copy` never answers Busy. `bytes_per_second`: not 0. Errors: EMFILE.
  static Result<std::unique_ptr<Stage>> make(std::unique_ptr<Stage> copy, std::uint64_t bytes_per_second,
                                             std::size_t slots, Reactor& reactor);

  const char* name() const override { return copy_->name(); }
  Result<Submit> submit(Slot& slot) override;
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override;
  void abandon() override;
  Result<void> finish() override { return copy_->finish(); }

 private:
  PacedStage(std::unique_ptr<Stage> copy, std::uint64_t bytes_per_second, std::size_t slots, Reactor& reactor,
             UniqueFd never);

  std::unique_ptr<Stage> copy_;
  const std::uint64_t bytes_per_second_;
  Reactor& reactor_;
  UniqueFd never_;           // an eventfd that nobody writes: waiting for it is a timer
  std::vector<bool> waits_;  // by slot: its time has not come
  std::uint64_t next_start_ns_ = 0;
  bool abandoned_ = false;
};

}  // namespace sluice::bench
