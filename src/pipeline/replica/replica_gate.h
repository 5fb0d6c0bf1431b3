// SPDX-License-Identifier: MIT
// The first stage of a lane that follows others: a chunk passes once its leaders have hashed what they have
// of it, or have ended. So what a leader writes is known when this lane decides, and two lanes with equal
// contents keep step.
//
// At most one chunk waits here, with one slot. Thread-bound to the lane.
#pragma once

#include <memory>

#include "base/unique_fd.h"
#include "pipeline/checksum/content_match.h"
#include "pipeline/reactor/reactor.h"
#include "pipeline/stage.h"

namespace sluice {

class ReplicaGate final : public Stage {
 public:
  // Borrows both. Errors: EMFILE.
  static Result<std::unique_ptr<ReplicaGate>> make(const ContentMatch& match, Reactor& reactor);
  ~ReplicaGate() override;

  const char* name() const override { return "replicas"; }
  Result<Submit> submit(Slot& slot) override;
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override;
  void abandon() override { abandoned_ = true; }

 private:
  ReplicaGate(const ContentMatch& match, Reactor& reactor, UniqueFd event)
      : match_(match), reactor_(reactor), event_(std::move(event)) {}
  bool waits(Slot& slot);

  const ContentMatch& match_;
  Reactor& reactor_;
  UniqueFd event_;
  LeaderLane* watched_ = nullptr;
  bool busy_ = false;
  bool abandoned_ = false;
};

}  // namespace sluice
