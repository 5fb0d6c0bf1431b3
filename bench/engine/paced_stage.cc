// SPDX-License-Identifier: MIT
#include "engine/paced_stage.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

namespace sluice::bench {

PacedStage::PacedStage(std::unique_ptr<Stage> copy, std::uint64_t bytes_per_second, std::size_t slots,
                       Reactor& reactor, UniqueFd never)
    : copy_(std::move(copy)),
      bytes_per_second_(bytes_per_second),
      reactor_(reactor),
      never_(std::move(never)),
      waits_(slots) {}

Result<std::unique_ptr<Stage>> PacedStage::make(std::unique_ptr<Stage> copy, std::uint64_t bytes_per_second,
                                                std::size_t slots, Reactor& reactor) {
  UniqueFd never(::eventfd(0, EFD_CLOEXEC));
  if (!never) return make_error(errno, "eventfd");
  return std::unique_ptr<Stage>(
      new PacedStage(std::move(copy), bytes_per_second, slots, reactor, std::move(never)));
}

Result<Submit> PacedStage::submit(Slot& slot) {
  const std::uint64_t now_ns = reactor_.now_ns();
  const std::uint64_t begin_ns = std::max(now_ns, next_start_ns_);
  const double seconds = static_cast<double>(slot.chunk.length) / static_cast<double>(bytes_per_second_);
  next_start_ns_ = begin_ns + static_cast<std::uint64_t>(seconds * 1e9);
  if (begin_ns == now_ns) return copy_->submit(slot);
  waits_[slot.index] = true;
  reactor_.poll_readable(slot.op(), never_.get(),
                         std::chrono::nanoseconds(static_cast<std::int64_t>(begin_ns - now_ns)));
  return Submit::Started;
}

Result<Progress> PacedStage::advance(Slot& slot, Op& op, std::int32_t result) {
  if (!waits_[slot.index]) return copy_->advance(slot, op, result);
  waits_[slot.index] = false;
  if (result != 0 && result != -ETIME) return make_error(-result, name());
  if (abandoned_) return Progress::Done;
  SLUICE_TRY(copy_->submit(slot));
  return Progress::Pending;
}

void PacedStage::abandon() {
  abandoned_ = true;
  copy_->abandon();
}

}  // namespace sluice::bench
