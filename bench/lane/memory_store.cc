// SPDX-License-Identifier: MIT
#include "lane/memory_store.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "engine/contents.h"
#include "engine/timed_stage.h"

namespace sluice::bench {
namespace {

std::span<const std::byte> every_chunk() {
  static const std::vector<std::byte> bytes = [] {
    std::vector<std::byte> made(kChunkBytes);
    fill(made, Contents{{kChunkBytes}});
    return made;
  }();
  return bytes;
}

// A buffer gets its bytes the first time and keeps them: the copy only reads it.
class MemorySource final : public Stage {
 public:
  MemorySource(const ImageLayout& layout, Reactor& reactor, bool copies)
      : layout_(layout), reactor_(reactor), copies_(copies) {}

  const char* name() const override { return "store"; }

  Result<Submit> submit(Slot& slot) override {
    if (slot.index >= filled_.size()) filled_.resize(slot.index + 1);
    if (copies_ || !filled_[slot.index])
      std::copy(every_chunk().begin(), every_chunk().end(), slot.buffer.begin());
    filled_[slot.index] = true;
    const std::uint64_t payload = layout_.payload_bytes();
    const void* begin = slot.chunk.index == 0 ? static_cast<const void*>(&payload) : every_chunk().data();
    std::memcpy(slot.buffer.data(), begin, kHeaderBytes);
    reactor_.post(slot.op(), 0);
    return Submit::Started;
  }
  Result<Progress> advance(Slot& /*slot*/, Op& /*op*/, std::int32_t /*result*/) override {
    return Progress::Done;
  }

 private:
  const ImageLayout& layout_;
  Reactor& reactor_;
  const bool copies_;
  std::vector<bool> filled_;  // by slot
};

}  // namespace

MakeStore memory_store(Direction direction, bool copies) {
  return [direction, copies](const ImageLayout& layout, Reactor& reactor) -> Result<std::unique_ptr<Stage>> {
    if (direction == Direction::Restore)
      return std::unique_ptr<Stage>(std::make_unique<MemorySource>(layout, reactor, copies));
    SLUICE_TRY_ASSIGN(std::unique_ptr<Stage> sink, TimedStage::make("store", 0, reactor));
    return sink;
  };
}

// Units of a BO repeat as chunks do, from the second chunk on: all except the first and the last.
SumTable sums_of_memory(const ImageLayout& layout, const SumMethod& method) {
  SumTable table = unit_tables(layout, kSumBlockBytes, method).front();
  const UnitIndex units(layout, table.block_bytes);
  std::map<std::pair<std::uint64_t, std::uint64_t>, Sum128> known;  // by place in a chunk
  const std::uint64_t payload = layout.payload_bytes();
  each_unit(layout, units, 0, [&](const SumRange& range) {
    const std::uint64_t begin = range.begin % kChunkBytes, length = range.end - range.begin;
    Sum128& sum = table.sums[static_cast<std::size_t>(range.index)];
    if (range.bo == Piece::kHeader) {
      sum = method.of(std::as_bytes(std::span(&payload, 1)));
      return;
    }
    const auto at = known.find({begin, length});
    sum = at != known.end()
              ? at->second
              : known.emplace(std::pair(begin, length), method.of(every_chunk().subspan(begin, length)))
                    .first->second;
  });
  return table;
}

}  // namespace sluice::bench
