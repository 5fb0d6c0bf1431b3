// SPDX-License-Identifier: MIT
// The checksum stage: a sum per block of the pages file, and the search for zero units.
//
// On dump it fills a SumTable and slot.zero_units. On restore it compares every block with the table *before*
// the chunk goes on to the GPU; a mismatch fails with EBADMSG and names block, file range and, through
// `describe`, the BO. Holes (slot.zero_units set by the source) are verified as the zeros they stand for,
// without looking at the buffer where a whole block is one. Thread-bound to the lane. Works inline, one chunk
// between two waits, or has a lane's workers do it, several chunks at once.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "pipeline/checksum/mac.h"
#include "pipeline/layout.h"
#include "pipeline/reactor.h"
#include "pipeline/slot_workers.h"
#include "pipeline/stage.h"

namespace sluice {

class Lane;

using Sum128 = std::array<std::uint8_t, 16>;

// XXH3-128 in canonical (big-endian) byte order, so that images move between hosts.
Sum128 sum_of(std::span<const std::byte> bytes);
// 32 digits.
std::string hex(const Sum128& sum);
bool is_zero(std::span<const std::byte> bytes);

// How sums are made: XXH3-128, which finds what breaks by accident, or with a key the first 128 bits of
// HMAC-SHA-256, which cannot be made without the key. Any thread. REQUIRES: with a key, load_mac() has
// succeeded.
class SumMethod {
 public:
  SumMethod() = default;
  explicit SumMethod(const MacKey& key) : key_(key) {}

  Sum128 of(std::span<const std::byte> bytes) const;
  // Of `length` bytes that are zero.
  Sum128 of_zeros(std::uint64_t length) const;
  // "XXH3-128", "HMAC-SHA-256-128": as sidecars say it, and messages.
  const char* name() const { return key_ ? "HMAC-SHA-256-128" : "XXH3-128"; }
  bool keyed() const { return key_.has_value(); }

  // Whether equal bytes have equal sums by both.
  bool operator==(const SumMethod&) const = default;

 private:
  std::optional<MacKey> key_;
};

// Sums of zeros: many files end alike, and each sum costs as much as that of data.
class ZeroSums {
 public:
  const Sum128& of(const SumMethod& method, std::uint64_t length);

 private:
  SumMethod method_;
  std::map<std::uint64_t, Sum128> by_length_;  // of method_
};

// Bytes of a block in images we write. A chunk is a multiple of it.
inline constexpr std::uint64_t kSumBlockBytes = kMiB;

// One sum per block of a file; the last block may be shorter.
struct SumTable {
  std::uint64_t block_bytes = kSumBlockBytes;  // power of two
  std::uint64_t file_bytes = 0;
  std::vector<Sum128> sums;  // div_ceil(file_bytes, block_bytes) entries
  SumMethod method;          // how they are made

  static SumTable sized(std::uint64_t file_bytes, std::uint64_t block_bytes, const SumMethod& method = {});
};

// A block that is not what its sum says.
struct BadBlock {
  std::uint32_t file = 0;  // of the layout
  std::uint64_t file_offset = 0;
  std::uint64_t length = 0;  // bytes
};

struct ChecksumOptions {
  bool detect_zero_units = true;  // dump: fill slot.zero_units
  bool check_headers = true;      // restore: the first bytes of a file say how long it is
  // Restore: is told of every block that differs, by whoever compares it, workers too; the chunk goes on.
  // Null: the first one fails it.
  std::function<void(const BadBlock&)> on_bad_block = nullptr;
};

class ChecksumStage final : public Stage, private SlotWork {
 public:
  // Turns a range of a file into words for messages ("BO 3 (gpu 0x5759, VA 0x7f0000000000) at offset 4096").
  using Describe =
      std::function<std::string(std::uint32_t file, std::uint64_t file_offset, std::uint64_t length)>;

  // `tables`: one for each file of the layout, borrowed. Dump: sized by the caller, filled here; restore:
  // what the sidecar said; all by the same method. Empty: no sums are made or compared (zero units are still
  // found, headers are still checked). `describe` may be null; workers call it, too. `workers`: null to work
  // inline; else for as many slots as the lane has. REQUIRES: layout.chunk_bytes() is a multiple of each
  // table's block_bytes; each is sized for layout.file_bytes() of its file.
  ChecksumStage(Direction direction, const ImageLayout& layout, Reactor& reactor, std::span<SumTable> tables,
                const ChecksumOptions& options, Describe describe,
                std::unique_ptr<SlotWorkers> workers = nullptr);

  const char* name() const override { return "checksum"; }
  Result<Submit> submit(Slot& slot) override;
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override;
  Result<void> finish() override;  // restore and dump: every block was seen exactly once

 private:
  Result<void> work(Slot& slot) override;
  Result<void> sum_chunk(Slot& slot);     // dump
  Result<void> verify_chunk(Slot& slot);  // restore
  Result<void> check_header(const Slot& slot) const;
  static bool all_zero_units(const Slot& slot, std::uint64_t begin, std::uint64_t end);
  Sum128 zero_sum(const SumTable& table, std::uint64_t length) const;
  // Null where no sums are made or compared.
  SumTable* table_of(const Slot& slot) const { return tables_.empty() ? nullptr : &tables_[slot.chunk.file]; }
  Result<void> mark_seen(const Slot& slot);
  std::string place(const Slot& slot, std::uint64_t file_offset, std::uint64_t length) const;

  Direction direction_;
  const ImageLayout& layout_;
  Reactor& reactor_;
  std::span<SumTable> tables_;
  ChecksumOptions options_;
  Describe describe_;
  std::uint64_t zero_block_bytes_ = 0;
  Sum128 zero_block_sum_{};              // of so many zeros: a whole block of the first file
  std::vector<std::vector<bool>> seen_;  // by file and block
  std::uint64_t blocks_ = 0;
  std::uint64_t blocks_seen_ = 0;
  bool running_ = false;                  // inline: a chunk was summed and its completion is still to come
  std::unique_ptr<SlotWorkers> workers_;  // last: what they still do uses the rest
};

// A ChecksumStage of that lane, with `workers` threads of its own (SlotWorkers) where that is not 0. Errors:
// those of SlotWorkers::start.
Result<std::unique_ptr<Stage>> make_checksum(Lane& lane, Direction direction, std::span<SumTable> tables,
                                             const ChecksumOptions& options, ChecksumStage::Describe describe,
                                             unsigned workers);

}  // namespace sluice
