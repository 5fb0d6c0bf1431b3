// SPDX-License-Identifier: MIT
// A copy stage over BOs that are vectors, instead of SDMA. Thread-bound like every stage.
#pragma once

#include "pipeline/layout.h"
#include "pipeline/reactor/reactor.h"
#include "pipeline/stage.h"
#include "support/serial_writer.h"

namespace sluice::test {

// Moves the bytes of one chunk: on dump from `bos` (and the header) to the buffer, on restore the reverse.
// The slot's zero units become zeros, whatever the buffer contains.
void move_chunk(Direction direction, const ImageLayout& layout, BoList& bos, Slot& slot);

std::vector<std::uint64_t> sizes_of(const BoList& bos);

// Copies when submitted.
class MemoryCopy final : public Stage {
 public:
  MemoryCopy(Direction direction, const ImageLayout& layout, Reactor& reactor, BoList& bos)
      : direction_(direction), layout_(layout), reactor_(reactor), bos_(bos) {}

  const char* name() const override { return "copy"; }
  Result<Submit> submit(Slot& slot) override {
    move_chunk(direction_, layout_, bos_, slot);
    reactor_.post(slot.op(), 0);
    return Submit::Started;
  }
  Result<Progress> advance(Slot& /*slot*/, Op& /*op*/, std::int32_t result) override {
    if (result < 0) return make_error(-result, "copy");
    return Progress::Done;
  }

 private:
  Direction direction_;
  const ImageLayout& layout_;
  Reactor& reactor_;
  BoList& bos_;
};

}  // namespace sluice::test
