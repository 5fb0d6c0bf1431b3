// SPDX-License-Identifier: MIT
// The copy stage of a pre-dump's lane whose GPU no longer answers: it writes zeros instead of the BOs. The
// next dump finds them changed and writes them. Layout and reactor are borrowed. Thread-bound to the lane.
#pragma once

#include "pipeline/layout.h"
#include "pipeline/reactor/reactor.h"
#include "pipeline/stage.h"

namespace sluice::plugin {

class LeftOut final : public Stage {
 public:
  LeftOut(const ImageLayout& layout, Reactor& reactor) : layout_(layout), reactor_(reactor) {}

  const char* name() const override { return "copy"; }
  Result<Submit> submit(Slot& slot) override;
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override;

 private:
  const ImageLayout& layout_;
  Reactor& reactor_;
};

}  // namespace sluice::plugin
