// SPDX-License-Identifier: MIT
// See copy_lane.h.
#include "copy_lane.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace sluice::drm::test {
namespace {

constexpr std::byte kJunk{0xA5};

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

Result<void> run_lane(const Device& device, Direction direction, std::vector<BoSource> sources,
                      const ImageLayout& layout, Bytes& image, LaneMemory& memory,
                      const CopyLaneOptions& options, CopyOutcome& outcome) {
  auto reactor = sluice::test::make_reactor_of(options.reactor, memory.entries());
  SLUICE_TRY_ASSIGN(auto copy, SdmaCopy::make(device, direction, layout, std::move(sources), memory.arena,
                                              memory.slots, *reactor, options.copy));
  outcome.staging = copy->staging();
  outcome.note = copy->staging_note();
  MemoryStore store(direction, layout, *reactor, image, options.holes);
  std::array<Stage*, 2> route{copy.get(), &store};
  if (direction == Direction::Restore) std::swap(route[0], route[1]);
  Pipeline pipeline(layout, memory.slots, route, *reactor);
  auto ran = pipeline.run();
  outcome.stats = copy->stats();
  if (!ran) return std::move(ran).error();
  return {};
}

}  // namespace

Result<Submit> MemoryStore::submit(Slot& slot) {
  const auto part = std::span(image_).subspan(static_cast<std::size_t>(slot.chunk.file_offset),
                                              static_cast<std::size_t>(slot.chunk.length));
  if (direction_ == Direction::Dump) {
    std::memcpy(part.data(), slot.buffer.data(), part.size());
  } else {
    for (std::size_t unit = 0; unit * kZeroUnitBytes < part.size(); ++unit) {
      const std::size_t at = unit * kZeroUnitBytes;
      const std::size_t length = std::min<std::size_t>(kZeroUnitBytes, part.size() - at);
      const bool zero = holes_ && all_zero(part.subspan(at, length));
      slot.zero_units[unit] = zero;
      if (zero) {
        std::fill_n(slot.buffer.begin() + static_cast<std::ptrdiff_t>(at), length, kJunk);
      } else {
        std::memcpy(slot.buffer.data() + at, part.data() + at, length);
      }
    }
  }
  reactor_.post(slot.op(), 0);
  return Submit::Started;
}

Result<Progress> MemoryStore::advance(Slot& /*slot*/, Op& /*op*/, std::int32_t result) {
  if (result < 0) return make_error(-result, "store");
  return Progress::Done;
}

CopyOutcome run_copy(const Device& device, Direction direction, const TargetFile& target,
                     const std::vector<TargetBo>& bos, Bytes& image, const CopyLaneOptions& options) {
  CopyOutcome outcome;
  std::vector<std::uint64_t> sizes;
  std::vector<BoSource> sources;
  for (const TargetBo& bo : bos) {
    sizes.push_back(bo.cpu().size());
    sources.push_back({target.dmabuf(bo), bo.cpu().size()});
  }
  const ImageLayout layout = std::move(ImageLayout::make(sizes, options.chunk_bytes)).value();
  LaneMemory memory(options.chunk_bytes, options.slots);
  outcome.result = run_lane(device, direction, std::move(sources), layout, image, memory, options, outcome);
  outcome.abandoned = memory.arena.abandoned();
  return outcome;
}

Bytes serial_image(const std::vector<TargetBo>& bos) {
  sluice::test::BoList contents;
  for (const TargetBo& bo : bos) contents.emplace_back(bo.cpu().begin(), bo.cpu().end());
  return sluice::test::serial_file(contents);
}

}  // namespace sluice::drm::test
