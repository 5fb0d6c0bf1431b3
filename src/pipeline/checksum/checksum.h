// SPDX-License-Identifier: MIT
// The checksum stage: a sum per unit of a BO (units.h), and the search for zero units.
//
// A dump fills a SumTable and slot.zero_units. A restore compares every unit with the table *before* the
// chunk goes on to the GPU. A mismatch fails with EBADMSG and names unit, file range and, through `describe`,
// the BO. Holes (slot.zero_units set by the source) are verified as zeros; the buffer is not read for a unit
// that is one hole. Thread-bound to the lane. Works inline, one chunk between two waits, or lets
// a lane's workers do several chunks at once.
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
#include "pipeline/checksum/units.h"
#include "pipeline/layout.h"
#include "pipeline/reactor/reactor.h"
#include "pipeline/slot_workers.h"
#include "pipeline/stage.h"

namespace sluice {

class Lane;
class ContentMatch;
class LeaderLane;

using Sum128 = std::array<std::uint8_t, 16>;

// Random bytes that XXH3 mixes with its input, in place of constants that everyone knows. They are aligned as
// its loop reads them.
struct alignas(64) SumSecret {
  std::array<std::uint8_t, 192> bytes{};
};

// XXH3-128 in canonical (big-endian) byte order, so that images move between hosts. `secret`: null for XXH3's
// own.
Sum128 sum_of(std::span<const std::byte> bytes, const SumSecret* secret = nullptr);
// 32 digits.
std::string hex(const Sum128& sum);
bool is_zero(std::span<const std::byte> bytes);

// The method of sums. Any thread; copies share the secret.
// - XXH3-128 finds accidental damage. Somebody who chooses 16 bytes of the data can make two contents
//   with one sum, so equal sums say nothing about bytes that others choose.
// - XXH3-128 with a secret: that takes the secret, and data never shows it.
// - With a key: the first 128 bits of HMAC-SHA-256, which nobody can forge without the key. REQUIRES:
//   load_mac() has succeeded.
class SumMethod {
 public:
  SumMethod() = default;
  explicit SumMethod(const MacKey& key) : key_(key) {}
  explicit SumMethod(const SumSecret& secret) : secret_(std::make_shared<const SumSecret>(secret)) {}

  Sum128 of(std::span<const std::byte> bytes) const;
  // The sum of `length` zeros.
  Sum128 of_zeros(std::uint64_t length) const;
  // "XXH3-128", "XXH3-128-secret", "HMAC-SHA-256-128": the name in sidecars and messages.
  const char* name() const;
  bool keyed() const { return key_.has_value(); }
  // Null if it has none.
  const SumSecret* secret() const { return secret_.get(); }
  // Whether equal sums mean equal bytes, also of bytes that others chose.
  bool decides() const { return key_ || secret_; }

  // Whether both give equal bytes equal sums.
  bool operator==(const SumMethod& other) const;

 private:
  std::optional<MacKey> key_;
  std::shared_ptr<const SumSecret> secret_;
};

// Sums of zeros: many files end in zeros, and each sum costs as much as that of data.
class ZeroSums {
 public:
  const Sum128& of(const SumMethod& method, std::uint64_t length);

 private:
  SumMethod method_;
  std::map<std::uint64_t, Sum128> by_length_;  // by method_
};

// The sums of a file, one per unit.
struct SumTable {
  std::uint64_t block_bytes = kSumBlockBytes;  // power of two; units are cut at the ends of blocks
  std::uint64_t file_bytes = 0;
  std::vector<Sum128> sums;  // UnitIndex::count()
  SumMethod method;
};

// One per file of a layout.
std::vector<SumTable> unit_tables(const ImageLayout& layout, std::uint64_t block_bytes = kSumBlockBytes,
                                  const SumMethod& method = {});

// A unit that differs from its sum.
struct BadBlock {
  std::uint32_t file = 0;  // of the layout
  std::uint64_t file_offset = 0;
  std::uint64_t length = 0;  // bytes
};

struct ChecksumOptions {
  bool detect_zero_units = true;  // dump: fill slot.zero_units
  bool check_headers = true;      // restore: the first bytes of a file give its length
  // Dump: gets each summed chunk, and says which parts other files have. Borrowed; null: none.
  ContentMatch* match = nullptr;
  // Dump: is told of each summed chunk, because other lanes may have the same. Borrowed; null: nobody asks.
  LeaderLane* leads = nullptr;
  // Restore: called for every unit that differs, in the comparing thread, which may be a worker's; the chunk
  // goes on. Null: the first one fails it.
  std::function<void(const BadBlock&)> on_bad_block = nullptr;
  // Restore: called first for such a unit, in the same thread. Reads it from another file; false: there is
  // none. May be null.
  std::function<bool(std::uint32_t file, std::uint64_t file_offset, std::span<std::byte> into)> read_again =
      nullptr;
};

class ChecksumStage final : public Stage, private SlotWork {
 public:
  // Describes a range of a file for messages ("BO 3 (gpu 0x5759, VA 0x7f0000000000) at offset 4096").
  using Describe =
      std::function<std::string(std::uint32_t file, std::uint64_t file_offset, std::uint64_t length)>;

  // `tables`: one per file of the layout, borrowed. Dump: sized by the caller, filled here; restore: from the
  // sidecar. All use the same method and the same cuts. Empty: no sums are made or compared (zero units are
  // still found, headers still checked). `describe` may be null; workers call it, too. `workers`: null to
  // work inline; else for as many slots as the lane has. REQUIRES: layout.chunk_bytes() is a multiple of each
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
  std::uint64_t find_zeros(Slot& slot, std::uint64_t next, std::uint64_t end) const;
  static bool all_zero_units(const Slot& slot, std::uint64_t begin, std::uint64_t end);
  Sum128 zero_sum(const SumTable& table, std::uint64_t length) const;
  // Null if no sums are made or compared.
  SumTable* table_of(const Slot& slot) const { return tables_.empty() ? nullptr : &tables_[slot.chunk.file]; }
  Result<void> mark_seen(const Slot& slot);
  std::string place(const Slot& slot, std::uint64_t file_offset, std::uint64_t length) const;

  Direction direction_;
  const ImageLayout& layout_;
  Reactor& reactor_;
  std::span<SumTable> tables_;
  ChecksumOptions options_;
  Describe describe_;
  std::optional<UnitIndex> units_;       // if there are tables
  Sum128 zero_unit_sum_{};               // of a whole unit
  std::vector<std::vector<bool>> seen_;  // by file and block
  std::uint64_t blocks_ = 0;
  std::uint64_t blocks_seen_ = 0;
  bool running_ = false;                  // inline: a chunk was summed and its completion is due
  std::unique_ptr<SlotWorkers> workers_;  // last: their work uses the rest
};

// A ChecksumStage of that lane; if `workers` is not 0, with that many threads (SlotWorkers). Errors: those of
// SlotWorkers::start.
Result<std::unique_ptr<Stage>> make_checksum(Lane& lane, Direction direction, std::span<SumTable> tables,
                                             const ChecksumOptions& options, ChecksumStage::Describe describe,
                                             unsigned workers);

}  // namespace sluice
