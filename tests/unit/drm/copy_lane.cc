// SPDX-License-Identifier: MIT
// See copy_lane.h.
#include "copy_lane.h"

#include <algorithm>
#include <cstring>

namespace sluice::drm {
namespace {

constexpr std::byte kJunk{0xA5};

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

Result<void> run_lane(const Device& device, Direction direction, std::vector<UniqueFd> dmabufs, Lane& lane,
                      Bytes& image, const CopyLaneOptions& options, CopyOutcome& outcome) {
  SLUICE_TRY_ASSIGN(auto copy, SdmaCopy::make(device, direction, lane.layout(), std::move(dmabufs),
                                              lane.arena(), lane.slots(), lane.reactor(), options.copy));
  outcome.staging = copy->staging();
  outcome.note = copy->staging_note();
  MemoryStore store(direction, lane.layout(), lane.reactor(), image, options.holes);
  auto ran = lane.run(Route{copy.get(), &store}.towards(direction));
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
  std::vector<UniqueFd> dmabufs;
  for (const TargetBo& bo : bos) {
    sizes.push_back(bo.cpu().size());
    dmabufs.push_back(bo.cpu().empty() ? UniqueFd() : target.dmabuf(bo));
  }
  const ImageLayout layout = std::move(ImageLayout::make(sizes, options.chunk_bytes)).value();
  test::TestWorld world(options.reactor, options.wrap);
  const auto lane = test::make_lane(layout, options.slots, world, options.cursors);
  outcome.result = run_lane(device, direction, std::move(dmabufs), *lane, image, options, outcome);
  outcome.abandoned = lane->arena().abandoned();
  return outcome;
}

Bytes serial_image(const std::vector<TargetBo>& bos) {
  test::BoList contents;
  for (const TargetBo& bo : bos) contents.emplace_back(bo.cpu().begin(), bo.cpu().end());
  return test::serial_file(contents);
}

}  // namespace sluice::drm
