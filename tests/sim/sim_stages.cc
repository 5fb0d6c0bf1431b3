// SPDX-License-Identifier: MIT
#include "sim/sim_stages.h"

#include <algorithm>
#include <cstring>

namespace sluice::sim {

Result<Submit> SimCopy::submit(Slot& slot) {
  if (running_ == options_.depth) return Submit::Busy;
  if (slot.chunk.index == options_.bad_chunk) fail("a corrupt chunk came to the copy stage");
  ++running_;
  if (direction_ == Direction::Dump) std::memset(slot.buffer.data(), 0xdb, slot.buffer.size());
  slot.failed_result = 0;
  slot.live_ops = static_cast<std::uint32_t>(rng_.between(1, kOpsPerSlot));
  for (std::uint32_t i = 0; i < slot.live_ops; ++i) {
    const bool fails = ops_++ == options_.fail_op;
    fault_fired_ = fault_fired_ || fails;
    reactor_.after(slot.ops[i], rng_.between(1, options_.latency_ns_max), fails ? -EREMOTEIO : 0);
  }
  return Submit::Started;
}

Result<Progress> SimCopy::advance(Slot& slot, Op& /*op*/, std::int32_t result) {
  if (result < 0) slot.failed_result = result;
  if (--slot.live_ops > 0) return Progress::Pending;
  --running_;
  if (slot.failed_result < 0)
    return make_error(-slot.failed_result, "copy of chunk " + std::to_string(slot.chunk.index));
  test::move_chunk(direction_, layout_, bos_, slot);
  if (direction_ == Direction::Restore) std::memset(slot.buffer.data(), 0xdc, slot.buffer.size());
  return Progress::Done;
}

Result<Submit> SimPipe::submit(Slot& slot) {
  if (running_ || slot.chunk.index != turn_) return Submit::Busy;
  running_ = true;
  slot.cursor = 0;
  start(slot);
  return Submit::Started;
}

// A pipe takes, or gives, what it likes.
void SimPipe::start(Slot& slot) {
  const std::uint64_t left = slot.chunk.length - slot.cursor;
  reactor_.after(slot.op(), rng_.between(1, latency_ns_max_),
                 static_cast<std::int32_t>(rng_.between(1, left)));
}

Result<Progress> SimPipe::advance(Slot& slot, Op& /*op*/, std::int32_t result) {
  const auto count = static_cast<std::uint64_t>(result);
  const std::span<std::byte> staged = slot.buffer.subspan(slot.cursor, count);
  if (direction_ == Direction::Dump) {
    bytes_.insert(bytes_.end(), staged.begin(), staged.end());
  } else {
    std::memcpy(staged.data(), &bytes_[slot.chunk.file_offset + slot.cursor], count);
  }
  slot.cursor += count;
  if (slot.cursor < slot.chunk.length) {
    start(slot);
    return Progress::Pending;
  }
  running_ = false;
  ++turn_;
  return Progress::Done;
}

}  // namespace sluice::sim
