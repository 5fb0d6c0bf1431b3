// SPDX-License-Identifier: MIT
// See packets.h.
#include "drm/packets.h"

#include <algorithm>
#include <cassert>

#include "base/format.h"
#include "base/units.h"

namespace sluice::drm {
namespace {

constexpr std::uint32_t kOpCopy = 1;
constexpr std::uint32_t kOpNop = 0;
constexpr std::uint32_t kFillHeader = 11U | 2U << 30;

// Families by amdgpu's number. Those above AI are one per SoC; the list ends at gfx12.
constexpr std::uint32_t kFamilyVi = 130;
constexpr std::uint32_t kFamilyCz = 135;
constexpr std::uint32_t kFamilyAi = 141;
constexpr std::uint32_t kFamilyRv = 142;
constexpr std::uint32_t kFamilyNv = 143;
constexpr std::uint32_t kFamilyVgh = 144;
constexpr std::uint32_t kFamilyGc1100 = 145;
constexpr std::uint32_t kFamilyYc = 146;
constexpr std::uint32_t kFamilyGc1101 = 148;
constexpr std::uint32_t kFamilyGc1036 = 149;
constexpr std::uint32_t kFamilyGc1150 = 150;
constexpr std::uint32_t kFamilyGc1037 = 151;
constexpr std::uint32_t kFamilyGc1200 = 152;

// SDMA 2.4 has a 21-bit count. Every gfx9+ engine accepts 4 MiB, whatever its header says; ROCr keeps fills
// below that.
constexpr SdmaLimits kLimitsV3{0x1FFFE0, 0x1FFFE0, false};
constexpr SdmaLimits kLimitsV4AndLater{0x400000, 0x3FFFE0, true};

std::uint32_t low(std::uint64_t address) {
  return static_cast<std::uint32_t>(address);
}
std::uint32_t high(std::uint64_t address) {
  return static_cast<std::uint32_t>(address >> 32);
}

}  // namespace

Result<SdmaGeneration> sdma_generation(std::uint32_t family, std::uint32_t ip_major) {
  switch (family) {
    case kFamilyVi:
    case kFamilyCz:
      return SdmaGeneration::V3;
    case kFamilyAi:
    case kFamilyRv:
      return SdmaGeneration::V4;
    case kFamilyNv:
    case kFamilyVgh:
    case kFamilyYc:
    case kFamilyGc1036:
    case kFamilyGc1037:
      return SdmaGeneration::V5;
    case kFamilyGc1100:
    case kFamilyGc1101:
    case kFamilyGc1150:
      return SdmaGeneration::V6;
    case kFamilyGc1200:
      return SdmaGeneration::V7;
    default:
      break;
  }
  if (family > kFamilyAi) {
    switch (ip_major) {
      case 4:
        return SdmaGeneration::V4;
      case 5:
        return SdmaGeneration::V5;
      case 6:
        return SdmaGeneration::V6;
      case 7:
        return SdmaGeneration::V7;
      default:
        break;
    }
  }
  return Error{ENOTSUP,
               formatted("the SDMA engine of family {}, IP version {}, is not supported; use a newer sluice "
                         "[SL-G54]",
                         family, ip_major)};
}

const SdmaLimits& sdma_limits(SdmaGeneration generation) {
  return generation == SdmaGeneration::V3 ? kLimitsV3 : kLimitsV4AndLater;
}

std::uint64_t copy_packets(SdmaGeneration generation, std::uint64_t bytes) {
  return div_ceil(bytes, sdma_limits(generation).copy_bytes_max);
}

std::uint64_t fill_packets(SdmaGeneration generation, std::uint64_t bytes) {
  return div_ceil(bytes, sdma_limits(generation).fill_bytes_max);
}

std::uint64_t ib_dwords_for(std::uint64_t copies, std::uint64_t fills, std::uint32_t alignment_dwords,
                            std::uint32_t segment_dwords_max) {
  const std::uint64_t dwords = copies * kCopyDwords + fills * kFillDwords;
  if (dwords <= segment_dwords_max) return align_up(dwords, kIbPaddingDwords);
  // A segment is closed when the next packet does not fit, so it has at least this size.
  const std::uint64_t least = segment_dwords_max - (kCopyDwords - 1);
  return dwords + div_ceil(dwords, least) * (std::uint64_t{alignment_dwords} + kIbPaddingDwords);
}

IbBuilder::IbBuilder(SdmaGeneration generation, std::span<std::uint32_t> memory,
                     std::uint32_t alignment_dwords, std::uint32_t segment_dwords_max)
    : limits_(sdma_limits(generation)),
      memory_(memory),
      alignment_(alignment_dwords),
      segment_dwords_max_(segment_dwords_max) {
  assert(std::has_single_bit(alignment_dwords) && alignment_dwords % kIbPaddingDwords == 0);
  assert(segment_dwords_max % kIbPaddingDwords == 0 && segment_dwords_max <= kIbDwordsMax);
}

void IbBuilder::copy(std::uint64_t source, std::uint64_t target, std::uint64_t bytes) {
  while (bytes > 0) {
    const std::uint64_t part = std::min<std::uint64_t>(bytes, limits_.copy_bytes_max);
    begin_packet(kCopyDwords);
    put(kOpCopy);
    put(count_field(part));
    put(0);
    put(low(source));
    put(high(source));
    put(low(target));
    put(high(target));
    source += part;
    target += part;
    bytes -= part;
  }
}

void IbBuilder::fill(std::uint64_t target, std::uint64_t bytes, std::uint32_t value) {
  assert(target % 4 == 0 && bytes % 4 == 0);
  while (bytes > 0) {
    const std::uint64_t part = std::min<std::uint64_t>(bytes, limits_.fill_bytes_max);
    begin_packet(kFillDwords);
    put(kFillHeader);
    put(low(target));
    put(high(target));
    put(value);
    put(count_field(part));
    target += part;
    bytes -= part;
  }
}

std::span<const IbSegment> IbBuilder::finish() {
  if (at_ > begin_) close_segment();
  return {segments_.data(), segments_count_};
}

void IbBuilder::begin_packet(std::uint32_t dwords) {
  if (at_ - begin_ + dwords > segment_dwords_max_) {
    close_segment();
    begin_ = static_cast<std::uint32_t>(align_up(at_, alignment_));
    at_ = begin_;
  }
  assert(align_up(at_ + std::uint64_t{dwords}, kIbPaddingDwords) <= memory_.size());
  ++packets_;
}

void IbBuilder::close_segment() {
  while ((at_ - begin_) % kIbPaddingDwords != 0) put(kOpNop);
  assert(segments_count_ < kIbSegmentsMax);
  segments_[segments_count_++] = {begin_, at_ - begin_};
}

std::uint32_t IbBuilder::count_field(std::uint64_t bytes) const {
  return static_cast<std::uint32_t>(limits_.count_is_bytes_minus_one ? bytes - 1 : bytes);
}

}  // namespace sluice::drm
