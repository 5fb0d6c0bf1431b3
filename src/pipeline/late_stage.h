// SPDX-License-Identifier: MIT
// A stage that is made when its first chunk comes. So a slow start at a route's end does not delay the stages
// before it. A restore's first reads run while the GPU registers the staging memory. Thread-bound to the
// lane, like the stage that it makes.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "pipeline/stage.h"

namespace sluice {

class LateStage final : public Stage {
 public:
  using Make = std::function<Result<std::unique_ptr<Stage>>()>;

  // `name`: the made stage's; a literal. Errors of `make` are those of the first chunk's submit().
  LateStage(const char* name, Make make) : name_(name), make_(std::move(make)) {}

  const char* name() const override { return name_; }
  Result<Submit> submit(Slot& slot) override {
    if (!stage_) {
      SLUICE_TRY_ASSIGN(stage_, make_());
    }
    return stage_->submit(slot);
  }
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override {
    return stage_->advance(slot, op, result);
  }
  void abandon() override {
    if (stage_) stage_->abandon();
  }
  Result<void> finish() override { return stage_ ? stage_->finish() : Result<void>(); }

 private:
  const char* const name_;
  const Make make_;
  std::unique_ptr<Stage> stage_;
};

}  // namespace sluice
