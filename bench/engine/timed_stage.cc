// SPDX-License-Identifier: MIT
#include "engine/timed_stage.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>

namespace sluice::bench {

double TimedDevice::serve(std::uint64_t bytes, double now_ns) {
  const std::lock_guard lock(mutex_);
  free_at_ns_ = std::max(free_at_ns_, now_ns) + static_cast<double>(bytes) / bytes_per_second_ * 1e9;
  return free_at_ns_;
}

Result<std::unique_ptr<TimedStage>> TimedStage::make(const char* name, std::shared_ptr<TimedDevice> device,
                                                     Reactor& reactor) {
  UniqueFd never(::eventfd(0, EFD_CLOEXEC));
  if (!never) return make_error(errno, "eventfd");
  return std::unique_ptr<TimedStage>(new TimedStage(name, std::move(device), reactor, std::move(never)));
}

Result<std::unique_ptr<TimedStage>> TimedStage::make(const char* name, double bytes_per_second,
                                                     Reactor& reactor) {
  return make(name, std::make_shared<TimedDevice>(bytes_per_second), reactor);
}

Result<Submit> TimedStage::submit(Slot& slot) {
  served_bytes_ += slot.chunk.length;
  if (device_->at_once()) {
    reactor_.post(slot.op(), 0);
    return Submit::Started;
  }
  const auto now = static_cast<double>(reactor_.now_ns());
  const double done = device_->serve(slot.chunk.length, now);
  reactor_.poll_readable(slot.op(), never_.get(),
                         std::chrono::nanoseconds(static_cast<std::int64_t>(done - now)));
  return Submit::Started;
}

Result<Progress> TimedStage::advance(Slot& /*slot*/, Op& /*op*/, std::int32_t result) {
  if (result != 0 && result != -ETIME) return make_error(-result, name_);
  return Progress::Done;
}

}  // namespace sluice::bench
