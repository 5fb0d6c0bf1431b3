// SPDX-License-Identifier: MIT
// SDMA packets as pure values: the generation of an engine, the limits of its packets, and an indirect buffer
// (IB) of linear copies and constant fills. No I/O, no device; reentrant.
//
// Formats, in dwords. Sources: the kernel's sdma_v*.c emit functions; libdrm's and IGT's tests and ROCr,
// which all write bytes - 1 into the count of gfx9 and later.
//   linear copy    {1, count, 0, source lo, source hi, target lo, target hi}
//   constant fill  {11 | 2 << 30 (unit: dword), target lo, target hi, value, count}
//   no operation   {0}
// `count` is bytes - 1 on SDMA 4 and later (gfx9+), bytes on SDMA 2.4 and 3. Example: a copy of 4096 bytes
// from 0x1_0000_0000 to 0x1_0020_0000 on SDMA 4 is {1, 0xFFF, 0, 0x00000000, 1, 0x00200000, 1}. A count of
// 0x1000 would move one byte too many.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace sluice::drm {

// V3 covers SDMA 2.4 and 3.x (Volcanic Islands), V4 gfx9 with MI200 and MI300, V5 gfx10, V6 gfx11, V7 gfx12.
enum class SdmaGeneration : std::uint8_t { V3, V4, V5, V6, V7 };

// `family`: AMDGPU_FAMILY_* of the device (141 = AI: Vega, MI200, MI300). `ip_major`: DMA
// hw_ip_version_major; decides for newer families. Errors: ENOTSUP for engines with other packets (SI, CI) or
// unknown ones.
Result<SdmaGeneration> sdma_generation(std::uint32_t family, std::uint32_t ip_major);

// Limits of one packet, bytes. Each is the smallest that any chip of the generation or any driver for it
// uses, and a multiple of 32. So a split keeps the alignment.
struct SdmaLimits {
  std::uint32_t copy_bytes_max = 0;
  std::uint32_t fill_bytes_max = 0;
  bool count_is_bytes_minus_one = true;
};
const SdmaLimits& sdma_limits(SdmaGeneration generation);

inline constexpr std::uint32_t kCopyDwords = 7;
inline constexpr std::uint32_t kFillDwords = 5;

// A segment is one IB. Its size is padded with NOPs to kIbPaddingDwords. The size field of the ring's
// INDIRECT packet has 20 bits; this is the largest padded size below it.
inline constexpr std::uint32_t kIbPaddingDwords = 8;
inline constexpr std::uint32_t kIbDwordsMax = 0xFFFFF / kIbPaddingDwords * kIbPaddingDwords;
// The kernel accepts at most this many IBs for one DMA job.
inline constexpr std::size_t kIbSegmentsMax = 49;

// How many packets a copy or fill of `bytes` needs.
std::uint64_t copy_packets(SdmaGeneration generation, std::uint64_t bytes);
std::uint64_t fill_packets(SdmaGeneration generation, std::uint64_t bytes);

// Dwords of memory for an IB of that many packets, padding included. Exact if it fits one segment of
// `segment_dwords_max`; beyond that enough for any order of the packets. `alignment_dwords`: of segments'
// begins.
std::uint64_t ib_dwords_for(std::uint64_t copies, std::uint64_t fills, std::uint32_t alignment_dwords,
                            std::uint32_t segment_dwords_max = kIbDwordsMax);

// A part of IB memory that the engine runs as one IB. Offset and size in dwords.
struct IbSegment {
  std::uint32_t offset = 0;
  std::uint32_t dwords = 0;  // a multiple of kIbPaddingDwords, at most kIbDwordsMax

  bool operator==(const IbSegment&) const = default;
};

// Writes packets into IB memory, front to back, without reading it (it may be write-combined). Starts a new
// segment when the current one is full. Borrows the memory.
class IbBuilder {
 public:
  // REQUIRES: `memory` has ib_dwords_for() of everything to be added; alignment_dwords is a power of two and
  // a multiple of kIbPaddingDwords; segment_dwords_max is a multiple of kIbPaddingDwords.
  IbBuilder(SdmaGeneration generation, std::span<std::uint32_t> memory, std::uint32_t alignment_dwords,
            std::uint32_t segment_dwords_max = kIbDwordsMax);

  // Any alignment is allowed; dword alignment of all three is fast. Nothing for bytes == 0.
  void copy(std::uint64_t source, std::uint64_t target, std::uint64_t bytes);

  // REQUIRES: target and bytes are multiples of 4.
  void fill(std::uint64_t target, std::uint64_t bytes, std::uint32_t value);

  // Pads and closes the last segment. Call once, last. Empty if nothing was added. Valid for the builder's
  // life.
  std::span<const IbSegment> finish();

  std::uint64_t packets() const { return packets_; }

 private:
  void begin_packet(std::uint32_t dwords);
  void put(std::uint32_t dword) { memory_[at_++] = dword; }
  void close_segment();
  std::uint32_t count_field(std::uint64_t bytes) const;

  const SdmaLimits& limits_;
  std::span<std::uint32_t> memory_;
  std::uint32_t alignment_;
  std::uint32_t segment_dwords_max_;
  std::uint32_t at_ = 0;     // next dword to write
  std::uint32_t begin_ = 0;  // first dword of the open segment
  std::uint64_t packets_ = 0;
  std::size_t segments_count_ = 0;
  std::array<IbSegment, kIbSegmentsMax> segments_;
};

}  // namespace sluice::drm
