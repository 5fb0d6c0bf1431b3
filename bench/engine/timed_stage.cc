// SPDX-License-Identifier: MIT
#include "engine/timed_stage.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>

namespace sluice::bench {

Result<std::unique_ptr<TimedStage>> TimedStage::make(const char* name, double bytes_per_second,
                                                     Reactor& reactor) {
  UniqueFd never(::eventfd(0, EFD_CLOEXEC));
  if (!never) return make_error(errno, "eventfd");
  return std::unique_ptr<TimedStage>(new TimedStage(name, bytes_per_second, reactor, std::move(never)));
}

Result<Submit> TimedStage::submit(Slot& slot) {
  served_bytes_ += slot.chunk.length;
  if (bytes_per_second_ <= 0) {
    reactor_.post(slot.op(), 0);
    return Submit::Started;
  }
  const auto now = static_cast<double>(reactor_.now_ns());
  const double takes = static_cast<double>(slot.chunk.length) / bytes_per_second_ * 1e9;
  busy_ns_ += takes;
  free_at_ns_ = std::max(free_at_ns_, now) + takes;
  reactor_.poll_readable(slot.op(), never_.get(),
                         std::chrono::nanoseconds(static_cast<std::int64_t>(free_at_ns_ - now)));
  return Submit::Started;
}

Result<Progress> TimedStage::advance(Slot& /*slot*/, Op& /*op*/, std::int32_t result) {
  if (result != 0 && result != -ETIME) return make_error(-result, name_);
  return Progress::Done;
}

}  // namespace sluice::bench
