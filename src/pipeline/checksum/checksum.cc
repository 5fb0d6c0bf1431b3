// SPDX-License-Identifier: MIT
#include "pipeline/checksum/checksum.h"

#include "pipeline/checksum/checksum_kernels.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/units.h"
#include "pipeline/lane.h"

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

Sum128 SumMethod::of(std::span<const std::byte> bytes) const {
  if (!key_) return sum_of(bytes);
  const Mac whole = mac_of(bytes, *key_);
  Sum128 sum{};
  std::copy_n(whole.begin(), sum.size(), sum.begin());
  return sum;
}

Sum128 SumMethod::of_zeros(std::uint64_t length) const {
  const std::vector<std::byte> zeros(static_cast<std::size_t>(length));
  return of(zeros);
}

const Sum128& ZeroSums::of(const SumMethod& method, std::uint64_t length) {
  if (method != method_) {
    method_ = method;
    by_length_.clear();
  }
  const auto known = by_length_.find(length);
  return known != by_length_.end() ? known->second
                                   : by_length_.emplace(length, method.of_zeros(length)).first->second;
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

SumTable SumTable::sized(std::uint64_t file_bytes, std::uint64_t block_bytes, const SumMethod& method) {
  return SumTable{block_bytes, file_bytes,
                  std::vector<Sum128>(static_cast<std::size_t>(div_ceil(file_bytes, block_bytes))), method};
}

ChecksumStage::ChecksumStage(Direction direction, const ImageLayout& layout, Reactor& reactor,
                             std::span<SumTable> tables, const ChecksumOptions& options, Describe describe,
                             std::unique_ptr<SlotWorkers> workers)
    : direction_(direction),
      layout_(layout),
      reactor_(reactor),
      tables_(tables),
      options_(options),
      describe_(std::move(describe)),
      workers_(std::move(workers)) {
  assert(tables_.empty() || tables_.size() == layout_.file_count());
  for (std::uint32_t file = 0; file < tables_.size(); ++file) {
    const SumTable& table = tables_[file];
    assert(std::has_single_bit(table.block_bytes) && layout_.chunk_bytes() % table.block_bytes == 0);
    assert(table.file_bytes == layout_.file_bytes(file));
    assert(table.method == tables_.front().method);
    assert(table.sums.size() == div_ceil(table.file_bytes, table.block_bytes));
    seen_.emplace_back(table.sums.size());
    blocks_ += table.sums.size();
  }
  if (tables_.empty()) return;
  zero_block_bytes_ = tables_.front().block_bytes;
  zero_block_sum_ = tables_.front().method.of_zeros(zero_block_bytes_);
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
  if (blocks_seen_ != blocks_) {
    return make_error(EIO, std::to_string(blocks_seen_) + " of " + std::to_string(blocks_) +
                               " blocks went through the checksum stage");
  }
  return {};
}

// Block by block, looking for zero units first: what is then hashed is in the cache, and a block of nothing
// but zero units needs no hashing. Dense data pays one cache line per unit.
Result<void> ChecksumStage::sum_chunk(Slot& slot) {
  const std::uint64_t length = slot.chunk.length;
  SumTable* const table = table_of(slot);
  const std::uint64_t block_bytes = table != nullptr ? table->block_bytes : layout_.chunk_bytes();
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
    if (table == nullptr) continue;
    const std::uint64_t block = (slot.chunk.file_offset + begin) / block_bytes;
    table->sums[static_cast<std::size_t>(block)] = all_zero_units(slot, begin, end)
                                                       ? zero_sum(*table, end - begin)
                                                       : table->method.of(part(slot, begin, end));
  }
  return {};
}

Result<void> ChecksumStage::verify_chunk(Slot& slot) {
  if (slot.chunk.file_offset == 0 && options_.check_headers) SLUICE_TRY(check_header(slot));
  const SumTable* const table = table_of(slot);
  if (table == nullptr) return {};
  const std::uint64_t length = slot.chunk.length;
  const std::uint64_t block_bytes = table->block_bytes;
  std::uint64_t next_unit = 0;  // holes below have been given their zeros, where anybody looks
  for (std::uint64_t begin = 0; begin < length; begin += block_bytes) {
    const std::uint64_t end = std::min(begin + block_bytes, length);
    const std::uint64_t block = (slot.chunk.file_offset + begin) / block_bytes;
    Sum128 sum;
    if (all_zero_units(slot, begin, end)) {
      sum = zero_sum(*table, end - begin);
    } else {
      for (next_unit = std::max(next_unit, begin / kZeroUnitBytes); next_unit * kZeroUnitBytes < end;
           ++next_unit) {
        if (!slot.zero_units[static_cast<std::size_t>(next_unit)]) continue;
        const std::uint64_t unit_begin = next_unit * kZeroUnitBytes;
        const std::span<std::byte> unit =
            part(slot, unit_begin, std::min(unit_begin + kZeroUnitBytes, length));
        std::memset(unit.data(), 0, unit.size());
      }
      sum = table->method.of(part(slot, begin, end));
    }
    const Sum128& expected = table->sums[static_cast<std::size_t>(block)];
    if (sum != expected && options_.on_bad_block) {
      options_.on_bad_block({slot.chunk.file, slot.chunk.file_offset + begin, end - begin});
    } else if (sum != expected) {
      // A sum by the key is not told: it would be one of bytes that somebody else has chosen.
      const std::string is = table->method.keyed() ? std::string("another ") + table->method.name()
                                                   : table->method.name() + (' ' + hex(sum));
      return make_error(EBADMSG, "block " + std::to_string(block) + " is corrupt: " +
                                     place(slot, slot.chunk.file_offset + begin, end - begin) + " has " + is +
                                     ", the sidecar says " + hex(expected));
    }
  }
  return {};
}

// The first bytes of the file say how many bytes follow. Host byte order, as written.
Result<void> ChecksumStage::check_header(const Slot& slot) const {
  std::uint64_t payload_bytes = 0;
  if (!slot.zero_units[0]) std::memcpy(&payload_bytes, slot.buffer.data(), sizeof payload_bytes);
  const std::uint64_t expected = layout_.payload_bytes(slot.chunk.file);
  if (payload_bytes == expected) return {};
  return make_error(EBADMSG, "the header of " + place(slot, 0, kHeaderBytes) + " says " +
                                 std::to_string(payload_bytes) +
                                 " bytes of contents, the BO table adds up to " + std::to_string(expected));
}

// Whether [begin, end) of the chunk lies in zero units only.
bool ChecksumStage::all_zero_units(const Slot& slot, std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t unit = begin / kZeroUnitBytes; unit * kZeroUnitBytes < end; ++unit) {
    if (!slot.zero_units[static_cast<std::size_t>(unit)]) return false;
  }
  return true;
}

Sum128 ChecksumStage::zero_sum(const SumTable& table, std::uint64_t length) const {
  return length == zero_block_bytes_ ? zero_block_sum_ : table.method.of_zeros(length);
}

Result<void> ChecksumStage::mark_seen(const Slot& slot) {
  const SumTable* const table = table_of(slot);
  if (table == nullptr) return {};
  std::vector<bool>& seen = seen_[slot.chunk.file];
  const std::uint64_t end = div_ceil(slot.chunk.file_offset + slot.chunk.length, table->block_bytes);
  for (std::uint64_t block = slot.chunk.file_offset / table->block_bytes; block < end; ++block) {
    const auto index = static_cast<std::size_t>(block);
    if (seen[index])
      return make_error(EIO, "block " + std::to_string(block) + " came to the checksum stage twice");
    seen[index] = true;
    ++blocks_seen_;
  }
  return {};
}

std::string ChecksumStage::place(const Slot& slot, std::uint64_t file_offset, std::uint64_t length) const {
  std::string text =
      "file range [" + std::to_string(file_offset) + ", " + std::to_string(file_offset + length) + ")";
  if (describe_) text += " (" + describe_(slot.chunk.file, file_offset, length) + ")";
  return text;
}

Result<std::unique_ptr<Stage>> make_checksum(Lane& lane, Direction direction, std::span<SumTable> tables,
                                             const ChecksumOptions& options, ChecksumStage::Describe describe,
                                             unsigned workers) {
  std::unique_ptr<SlotWorkers> threads;
  if (workers > 0) {
    SLUICE_TRY_ASSIGN(threads, SlotWorkers::start("sluice-sum", workers, lane.slot_count()));
  }
  return std::unique_ptr<Stage>(std::make_unique<ChecksumStage>(
      direction, lane.layout(), lane.reactor(), tables, options, std::move(describe), std::move(threads)));
}

}  // namespace sluice
