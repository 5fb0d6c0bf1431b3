// SPDX-License-Identifier: MIT
#include "pipeline/replica/replica_gate.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <chrono>

namespace sluice {
namespace {

// Between two looks at whether the lane was cancelled, which wakes nobody.
constexpr auto kPatience = std::chrono::milliseconds(100);

}  // namespace

Result<std::unique_ptr<ReplicaGate>> ReplicaGate::make(const ContentMatch& match, Reactor& reactor) {
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return make_error(errno, "eventfd of a lane");
  return std::unique_ptr<ReplicaGate>(new ReplicaGate(match, reactor, std::move(event)));
}

ReplicaGate::~ReplicaGate() {
  if (watched_ != nullptr) watched_->forget(event_.get());
}

Result<Submit> ReplicaGate::submit(Slot& slot) {
  if (busy_) return Submit::Busy;
  busy_ = true;
  if (!waits(slot)) reactor_.post(slot.op(), 0);
  return Submit::Started;
}

// Whether it waits, and so its Op is in flight.
bool ReplicaGate::waits(Slot& slot) {
  if (abandoned_) return false;
  while (const auto wait = match_.waits_for(slot.chunk)) {
    if (!wait->lane->watch(wait->chunk, event_.get())) continue;
    watched_ = wait->lane;
    reactor_.poll_readable(slot.op(), event_.get(), kPatience);
    return true;
  }
  return false;
}

Result<Progress> ReplicaGate::advance(Slot& slot, Op& /*op*/, std::int32_t result) {
  if (watched_ != nullptr) {
    watched_->forget(event_.get());
    watched_ = nullptr;
    eventfd_t count = 0;
    (void)::eventfd_read(event_.get(), &count);
    if (result < 0 && result != -ETIME) return make_error(-result, "wait for another GPU's checksums");
    if (waits(slot)) return Progress::Pending;
  }
  busy_ = false;
  return Progress::Done;
}

}  // namespace sluice
