// SPDX-License-Identifier: MIT
#include "pipeline/checksum/checksum.h"

#include "base/format.h"
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
#include "pipeline/checksum/content_match.h"
#include "pipeline/lane.h"

namespace sluice {

namespace detail {

void xxh3_128_baseline(const void* data, size_t bytes, const unsigned char* secret, unsigned char* sum) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, secret == nullptr
                                           ? XXH3_128bits(data, bytes)
                                           : XXH3_128bits_withSecret(data, bytes, secret, kSecretBytes));
  std::memcpy(sum, canonical.digest, sizeof canonical.digest);
}

}  // namespace detail

namespace {

using SumFunction = decltype(&detail::xxh3_128_baseline);

SumFunction best_sum_function() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return detail::xxh3_128_avx2;  // unreached: another machine
#endif
  return detail::xxh3_128_baseline;  // unreached: another machine
}

// The bytes [begin, end) of a chunk's buffer.
std::span<std::byte> part(Slot& slot, std::uint64_t begin, std::uint64_t end) {
  return slot.buffer.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

}  // namespace

Sum128 sum_of(std::span<const std::byte> bytes, const SumSecret* secret) {
  static_assert(sizeof(SumSecret) == detail::kSecretBytes);
  static const SumFunction sum_function = best_sum_function();
  Sum128 sum{};
  sum_function(bytes.data(), bytes.size(), secret != nullptr ? secret->bytes.data() : nullptr, sum.data());
  return sum;
}

Sum128 SumMethod::of(std::span<const std::byte> bytes) const {
  if (!key_) return sum_of(bytes, secret_.get());
  const Mac whole = mac_of(bytes, *key_);
  Sum128 sum{};
  std::copy_n(whole.begin(), sum.size(), sum.begin());
  return sum;
}

const char* SumMethod::name() const {
  if (key_) return "HMAC-SHA-256-128";
  return secret_ ? "XXH3-128-secret" : "XXH3-128";
}

bool SumMethod::operator==(const SumMethod& other) const {
  const bool same_secret =
      secret_ == other.secret_ || (secret_ && other.secret_ && secret_->bytes == other.secret_->bytes);
  return key_ == other.key_ && same_secret;
}

Sum128 SumMethod::of_zeros(std::uint64_t length) const {
  static std::array<std::byte, kSumUnitBytes> few;
  if (length <= few.size()) return of(std::span(few).first(static_cast<std::size_t>(length)));
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

// All bytes are zero if the first few are and every byte equals the one kStride before it. The C library's
// fastest loop over memory on this CPU is memcmp. It stops at the first difference: data costs one cache
// line.
bool is_zero(std::span<const std::byte> bytes) {
  constexpr std::size_t kStride = 64;
  const std::size_t head = std::min(bytes.size(), kStride);
  for (std::size_t i = 0; i < head; ++i) {
    if (bytes[i] != std::byte{0}) return false;
  }
  return bytes.size() <= kStride ||
         std::memcmp(bytes.data(), bytes.data() + kStride, bytes.size() - kStride) == 0;
}

std::vector<SumTable> unit_tables(const ImageLayout& layout, std::uint64_t block_bytes,
                                  const SumMethod& method) {
  const UnitIndex units(layout, block_bytes);
  std::vector<SumTable> tables;
  tables.reserve(layout.file_count());
  for (std::uint32_t file = 0; file < layout.file_count(); ++file) {
    tables.push_back({block_bytes, layout.file_bytes(file),
                      std::vector<Sum128>(static_cast<std::size_t>(units.count(file))), method});
  }
  return tables;
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
  if (tables_.empty()) return;
  units_.emplace(layout_, tables_.front().block_bytes);
  zero_unit_sum_ = tables_.front().method.of_zeros(kSumUnitBytes);
  for (std::uint32_t file = 0; file < tables_.size(); ++file) {
    const SumTable& table = tables_[file];
    assert(std::has_single_bit(table.block_bytes) && layout_.chunk_bytes() % table.block_bytes == 0);
    assert(table.file_bytes == layout_.file_bytes(file));
    assert(table.method == tables_.front().method && table.block_bytes == tables_.front().block_bytes);
    assert(table.sums.size() == units_->count(file));
    const std::uint64_t blocks = div_ceil(table.file_bytes, table.block_bytes);
    seen_.emplace_back(static_cast<std::size_t>(blocks));
    blocks_ += blocks;
  }
}

// Inline, one chunk between two waits: each chunk goes on as soon as it is summed, and the disk gets more
// requests in between.
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
    return make_error(
        EIO, formatted("only {} of {} blocks went through the checksum stage", blocks_seen_, blocks_));
  }
  return {};
}

// Fills slot.zero_units from `next` to the one with the byte before `end`, and returns the one after it.
std::uint64_t ChecksumStage::find_zeros(Slot& slot, std::uint64_t next, std::uint64_t end) const {
  for (; options_.detect_zero_units && next * kZeroUnitBytes < end; ++next) {
    const std::uint64_t begin = next * kZeroUnitBytes;
    slot.zero_units[static_cast<std::size_t>(next)] =
        is_zero(part(slot, begin, std::min(begin + kZeroUnitBytes, slot.chunk.length)));
  }
  return next;
}

// Sum by sum, after looking for zeros: then data to be hashed is in the cache, and zeros need no hashing.
// Dense data pays one cache line per 64 KiB.
Result<void> ChecksumStage::sum_chunk(Slot& slot) {
  SumTable* const table = table_of(slot);
  if (table == nullptr) {
    (void)find_zeros(slot, 0, slot.chunk.length);
    return {};
  }
  std::uint64_t next_zeros = 0;
  SumRangeCursor ranges(layout_, *units_, slot.chunk);
  for (SumRange range; ranges.next(range);) {
    const std::uint64_t begin = range.begin;
    const std::uint64_t end = range.end;
    next_zeros = find_zeros(slot, next_zeros, end);
    table->sums[static_cast<std::size_t>(range.index)] = all_zero_units(slot, begin, end)
                                                             ? zero_sum(*table, end - begin)
                                                             : table->method.of(part(slot, begin, end));
  }
  if (options_.leads != nullptr) options_.leads->publish(slot.chunk.index);
  if (options_.match != nullptr) options_.match->take(slot, *table);
  return {};
}

Result<void> ChecksumStage::verify_chunk(Slot& slot) {
  if (slot.chunk.file_offset == 0 && options_.check_headers) SLUICE_TRY(check_header(slot));
  const SumTable* const table = table_of(slot);
  if (table == nullptr) return {};
  const std::uint64_t length = slot.chunk.length;
  std::uint64_t next_unit = 0;  // holes below have been filled with zeros, if needed
  SumRangeCursor ranges(layout_, *units_, slot.chunk);
  for (SumRange range; ranges.next(range);) {
    const std::uint64_t begin = range.begin;
    const std::uint64_t end = range.end;
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
    const Sum128& expected = table->sums[static_cast<std::size_t>(range.index)];
    if (sum != expected && options_.read_again &&
        options_.read_again(slot.chunk.file, slot.chunk.file_offset + begin, part(slot, begin, end)))
      sum = table->method.of(part(slot, begin, end));
    if (sum != expected && options_.on_bad_block) {
      options_.on_bad_block({slot.chunk.file, slot.chunk.file_offset + begin, end - begin});
    } else if (sum != expected) {
      // A keyed sum is not shown: it would be the sum of bytes that someone else has chosen.
      const std::string is = table->method.keyed() ? std::string("another ") + table->method.name()
                                                   : table->method.name() + (' ' + hex(sum));
      return Error{EBADMSG,
                   formatted("unit {} is corrupt: {} has {}, the sidecar says {}; use another checkpoint "
                             "[SL-C06]",
                             range.index, place(slot, slot.chunk.file_offset + begin, end - begin), is,
                             hex(expected))};
    }
  }
  return {};
}

// The file's first bytes say how many bytes follow. Host byte order, as written.
Result<void> ChecksumStage::check_header(const Slot& slot) const {
  std::uint64_t payload_bytes = 0;
  if (!slot.zero_units[0]) std::memcpy(&payload_bytes, slot.buffer.data(), sizeof payload_bytes);
  const std::uint64_t expected = layout_.payload_bytes(slot.chunk.file);
  if (payload_bytes == expected) return {};
  return Error{
      EBADMSG,
      formatted("the header of {} says {} bytes of contents, the BO table adds up to {}; use another "
                "checkpoint [SL-C07]",
                place(slot, 0, kHeaderBytes), payload_bytes, expected)};
}

// Whether [begin, end) of the chunk consists of zero units.
bool ChecksumStage::all_zero_units(const Slot& slot, std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t unit = begin / kZeroUnitBytes; unit * kZeroUnitBytes < end; ++unit) {
    if (!slot.zero_units[static_cast<std::size_t>(unit)]) return false;
  }
  return true;
}

Sum128 ChecksumStage::zero_sum(const SumTable& table, std::uint64_t length) const {
  return length == kSumUnitBytes ? zero_unit_sum_ : table.method.of_zeros(length);
}

Result<void> ChecksumStage::mark_seen(const Slot& slot) {
  const SumTable* const table = table_of(slot);
  if (table == nullptr) return {};
  std::vector<bool>& seen = seen_[slot.chunk.file];
  const std::uint64_t end = div_ceil(slot.chunk.file_offset + slot.chunk.length, table->block_bytes);
  for (std::uint64_t block = slot.chunk.file_offset / table->block_bytes; block < end; ++block) {
    const auto index = static_cast<std::size_t>(block);
    if (seen[index]) return make_error(EIO, formatted("block {} came to the checksum stage twice", block));
    seen[index] = true;
    ++blocks_seen_;
  }
  return {};
}

std::string ChecksumStage::place(const Slot& slot, std::uint64_t file_offset, std::uint64_t length) const {
  std::string text = formatted("file range [{}, {})", file_offset, file_offset + length);
  if (describe_) text += " (" + describe_(slot.chunk.file, file_offset, length) + ")";
  return text;
}

Result<std::unique_ptr<Stage>> make_checksum(Lane& lane, Direction direction, std::span<SumTable> tables,
                                             const ChecksumOptions& options, ChecksumStage::Describe describe,
                                             unsigned workers) {
  std::unique_ptr<SlotWorkers> threads;
  if (workers > 0) {
    SLUICE_TRY_ASSIGN(threads, SlotWorkers::start("sluice-sum", workers, lane.slot_count(), lane.world()));
  }
  return std::unique_ptr<Stage>(std::make_unique<ChecksumStage>(
      direction, lane.layout(), lane.reactor(), tables, options, std::move(describe), std::move(threads)));
}

}  // namespace sluice
