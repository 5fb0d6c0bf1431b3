// SPDX-License-Identifier: MIT
#include "pipeline/checksum.h"

#include "pipeline/checksum_kernels.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdio>
#include <cstring>
#include <utility>

#include "pipeline/units.h"

namespace sluice {

namespace detail {

void xxh3_128_baseline(const void* data, size_t bytes, unsigned char* sum) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, bytes));
  std::memcpy(sum, canonical.digest, sizeof canonical.digest);
}

}  // namespace detail

namespace {

using SumFunction = void (*)(const void* data, std::size_t bytes, unsigned char* sum);

SumFunction best_sum_function() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return detail::xxh3_128_avx2;
#endif
  return detail::xxh3_128_baseline;
}

Sum128 sum_of_zeros(std::uint64_t length) {
  const std::vector<std::byte> zeros(static_cast<std::size_t>(length));
  return sum_of(zeros);
}

std::string hex(const Sum128& sum) {
  std::string text;
  for (const std::uint8_t byte : sum) {
    std::array<char, 3> digits{};
    (void)std::snprintf(digits.data(), digits.size(), "%02x", byte);
    text += digits.data();
  }
  return text;
}

// The bytes [begin, end) of a chunk's buffer.
std::span<std::byte> part(Slot& slot, std::uint64_t begin, std::uint64_t end) {
  return slot.buffer.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

}  // namespace

Sum128 sum_of(std::span<const std::byte> bytes) {
  static const SumFunction sum_function = best_sum_function();
  Sum128 sum{};
  sum_function(bytes.data(), bytes.size(), sum.data());
  return sum;
}

// All bytes are zero when the first few are and every byte equals the one kStride before it. memcmp is the
// fastest loop over memory that the C library has for this CPU, and stops at the first difference: data costs
// one cache line.
bool is_zero(std::span<const std::byte> bytes) {
  constexpr std::size_t kStride = 64;
  const std::size_t head = std::min(bytes.size(), kStride);
  for (std::size_t i = 0; i < head; ++i) {
    if (bytes[i] != std::byte{0}) return false;
  }
  return bytes.size() <= kStride ||
         std::memcmp(bytes.data(), bytes.data() + kStride, bytes.size() - kStride) == 0;
}

SumTable SumTable::sized(std::uint64_t file_bytes, std::uint64_t block_bytes) {
  return SumTable{block_bytes, file_bytes,
                  std::vector<Sum128>(static_cast<std::size_t>(div_ceil(file_bytes, block_bytes)))};
}

ChecksumStage::ChecksumStage(Direction direction, const ImageLayout& layout, Reactor& reactor,
                             SumTable* table, const ChecksumOptions& options,
                             std::function<std::string(std::uint64_t, std::uint64_t)> describe,
                             std::unique_ptr<SlotWorkers> workers)
    : direction_(direction),
      layout_(layout),
      reactor_(reactor),
      table_(table),
      options_(options),
      describe_(std::move(describe)),
      workers_(std::move(workers)) {
  if (table_ == nullptr) return;
  assert(std::has_single_bit(table_->block_bytes) && layout_.chunk_bytes() % table_->block_bytes == 0);
  assert(table_->file_bytes == layout_.file_bytes());
  assert(table_->sums.size() == div_ceil(layout_.file_bytes(), table_->block_bytes));
  seen_.assign(table_->sums.size(), false);
  const std::uint64_t tail_bytes = layout_.file_bytes() - (table_->sums.size() - 1) * table_->block_bytes;
  zero_block_sum_ = sum_of_zeros(table_->block_bytes);
  zero_tail_sum_ = sum_of_zeros(tail_bytes);
}

// Inline one chunk between two waits: the next stage gets a chunk as soon as it is summed, not after all
// those that came with it, and the disk is asked for more in between.
Result<Submit> ChecksumStage::submit(Slot& slot) {
  if (running_) return Submit::Busy;
  SLUICE_TRY(mark_seen(slot));
  if (workers_ != nullptr) {
    workers_->run(slot, *this, reactor_);
  } else {
    SLUICE_TRY(work(slot));
    running_ = true;
    reactor_.post(slot.op(), 0);
  }
  return Submit::Started;
}

Result<Progress> ChecksumStage::advance(Slot& slot, Op& /*op*/, std::int32_t result) {
  running_ = false;
  if (workers_ != nullptr) SLUICE_TRY(workers_->take(slot, result));
  return Progress::Done;
}

Result<void> ChecksumStage::work(Slot& slot) {
  return direction_ == Direction::Dump ? sum_chunk(slot) : verify_chunk(slot);
}

Result<void> ChecksumStage::finish() {
  if (table_ != nullptr && blocks_seen_ != seen_.size()) {
    return make_error(EIO, std::to_string(blocks_seen_) + " of " + std::to_string(seen_.size()) +
                               " blocks went through the checksum stage");
  }
  return {};
}

// Block by block, looking for zero units first: what is then hashed is in the cache, and a block of nothing
// but zero units needs no hashing. Dense data pays one cache line per unit.
Result<void> ChecksumStage::sum_chunk(Slot& slot) {
  const std::uint64_t length = slot.chunk.length;
  const std::uint64_t block_bytes = table_ != nullptr ? table_->block_bytes : layout_.chunk_bytes();
  std::uint64_t next_unit = 0;  // units below were looked at
  for (std::uint64_t begin = 0; begin < length; begin += block_bytes) {
    const std::uint64_t end = std::min(begin + block_bytes, length);
    if (options_.detect_zero_units) {
      for (; next_unit * kZeroUnitBytes < end; ++next_unit) {
        const std::uint64_t unit_begin = next_unit * kZeroUnitBytes;
        const std::uint64_t unit_end = std::min(unit_begin + kZeroUnitBytes, length);
        slot.zero_units[static_cast<std::size_t>(next_unit)] = is_zero(part(slot, unit_begin, unit_end));
      }
    }
    if (table_ == nullptr) continue;
    const std::uint64_t block = (slot.chunk.file_offset + begin) / block_bytes;
    table_->sums[static_cast<std::size_t>(block)] =
        all_zero_units(slot, begin, end) ? zero_sum(end - begin) : sum_of(part(slot, begin, end));
  }
  return {};
}

Result<void> ChecksumStage::verify_chunk(Slot& slot) {
  if (slot.chunk.index == 0) SLUICE_TRY(check_header(slot));
  if (table_ == nullptr) return {};
  const std::uint64_t length = slot.chunk.length;
  const std::uint64_t block_bytes = table_->block_bytes;
  std::uint64_t next_unit = 0;  // holes below have been given their zeros, where anybody looks
  for (std::uint64_t begin = 0; begin < length; begin += block_bytes) {
    const std::uint64_t end = std::min(begin + block_bytes, length);
    const std::uint64_t block = (slot.chunk.file_offset + begin) / block_bytes;
    Sum128 sum;
    if (all_zero_units(slot, begin, end)) {
      sum = zero_sum(end - begin);
    } else {
      for (next_unit = std::max(next_unit, begin / kZeroUnitBytes); next_unit * kZeroUnitBytes < end;
           ++next_unit) {
        if (!slot.zero_units[static_cast<std::size_t>(next_unit)]) continue;
        const std::uint64_t unit_begin = next_unit * kZeroUnitBytes;
        const std::span<std::byte> unit =
            part(slot, unit_begin, std::min(unit_begin + kZeroUnitBytes, length));
        std::memset(unit.data(), 0, unit.size());
      }
      sum = sum_of(part(slot, begin, end));
    }
    const Sum128& expected = table_->sums[static_cast<std::size_t>(block)];
    if (sum != expected) {
      return make_error(EBADMSG, "block " + std::to_string(block) +
                                     " is corrupt: " + place(slot.chunk.file_offset + begin, end - begin) +
                                     " has XXH3-128 " + hex(sum) + ", the sidecar says " + hex(expected));
    }
  }
  return {};
}

// The first bytes of the file say how many bytes follow. Host byte order, as written.
Result<void> ChecksumStage::check_header(const Slot& slot) const {
  std::uint64_t payload_bytes = 0;
  if (!slot.zero_units[0]) std::memcpy(&payload_bytes, slot.buffer.data(), sizeof payload_bytes);
  if (payload_bytes == layout_.payload_bytes()) return {};
  return make_error(
      EBADMSG, "the header of " + place(0, kHeaderBytes) + " says " + std::to_string(payload_bytes) +
                   " bytes of contents, the BO table adds up to " + std::to_string(layout_.payload_bytes()));
}

// Whether [begin, end) of the chunk lies in zero units only.
bool ChecksumStage::all_zero_units(const Slot& slot, std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t unit = begin / kZeroUnitBytes; unit * kZeroUnitBytes < end; ++unit) {
    if (!slot.zero_units[static_cast<std::size_t>(unit)]) return false;
  }
  return true;
}

const Sum128& ChecksumStage::zero_sum(std::uint64_t length) const {
  return length == table_->block_bytes ? zero_block_sum_ : zero_tail_sum_;
}

Result<void> ChecksumStage::mark_seen(const Slot& slot) {
  if (table_ == nullptr) return {};
  const std::uint64_t end = div_ceil(slot.chunk.file_offset + slot.chunk.length, table_->block_bytes);
  for (std::uint64_t block = slot.chunk.file_offset / table_->block_bytes; block < end; ++block) {
    const auto index = static_cast<std::size_t>(block);
    if (seen_[index])
      return make_error(EIO, "block " + std::to_string(block) + " came to the checksum stage twice");
    seen_[index] = true;
    ++blocks_seen_;
  }
  return {};
}

std::string ChecksumStage::place(std::uint64_t file_offset, std::uint64_t length) const {
  std::string text =
      "file range [" + std::to_string(file_offset) + ", " + std::to_string(file_offset + length) + ")";
  if (describe_) text += " (" + describe_(file_offset, length) + ")";
  return text;
}

}  // namespace sluice
