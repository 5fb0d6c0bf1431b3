// SPDX-License-Identifier: MIT
// How much of a dump with a parent is written although it has not changed, because the table of BOs did.
//
// The KFD lists BOs by their ids and gives a new BO the lowest free id. So one small BO moves all BOs with
// higher ids in the pages file. Two allocators that people use are modelled: their sizes, and what they free
// and allocate between two dumps. No bytes: a unit's sum is a function of its BO and place.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/units.h"
#include "kfd/records/bo_order.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/checksum/content_match.h"
#include "pipeline/checksum/units.h"
#include "pipeline/layout.h"
#include "pipeline/slot.h"
#include "support/rng.h"

namespace sluice {
namespace {

using test::Rng;

constexpr std::uint64_t kChunkBytes = 4 * kMiB;
constexpr std::uint64_t kSegment = 2 * kMiB;  // PyTorch's and the runtime's granularity of large memory

// A GPU's BOs as the KFD lists them.
class Table {
 public:
  struct Bo {
    std::uint64_t name = 0;  // what it is: two tables that have it have the same BO
    std::uint64_t bytes = 0;
  };

  void allocate(std::uint64_t bytes) {
    std::uint32_t id = 0;
    while (bos_.count(id) != 0) ++id;
    bos_[id] = {++last_name_, bytes};
  }
  void free_id(std::uint32_t id) { bos_.erase(id); }
  // One BO of at least that size, drawn.
  void free_one(std::uint64_t at_least, Rng& rng) {
    std::vector<std::uint32_t> ids;
    for (const auto& [id, bo] : bos_)
      if (bo.bytes >= at_least) ids.push_back(id);
    if (!ids.empty()) bos_.erase(ids[static_cast<std::size_t>(rng.between(0, ids.size() - 1))]);
  }

  // In the order of the dump.
  std::vector<Bo> list() const {
    std::vector<Bo> by_id;
    std::vector<std::uint64_t> bytes;
    for (const auto& [id, bo] : bos_) {
      by_id.push_back(bo);
      bytes.push_back(bo.bytes);
    }
    std::vector<Bo> all;
    for (const std::size_t bo : kfd::bo_order(bytes, kSumBlockBytes)) all.push_back(by_id[bo]);
    return all;
  }

 private:
  std::map<std::uint32_t, Bo> bos_;
  std::uint64_t last_name_ = 0;
};

// What the runtime has before the job allocates anything: rings, signals, kernel arguments, code objects.
void allocate_runtime(Table& table, Rng& rng) {
  for (int i = 0; i < 40; ++i) table.allocate(4 * kKiB * rng.between(1, 64));
  table.allocate(kMiB);
}

// PyTorch's caching allocator: 2 MiB for small tensors, 20 MiB for middle ones, more in steps of 2 MiB.
Table pytorch(Rng& rng) {
  Table table;
  allocate_runtime(table, rng);
  for (int i = 0; i < 60; ++i) table.allocate(kSegment);
  for (int i = 0; i < 60; ++i) table.allocate(20 * kMiB);
  for (int i = 0; i < 60; ++i) table.allocate(kSegment * rng.between(5, 128));
  return table;
}

// vLLM: weights of many sizes, and a KV cache in equal parts, a part a layer.
Table vllm(Rng& rng) {
  Table table;
  allocate_runtime(table, rng);
  for (int i = 0; i < 120; ++i) table.allocate(kSegment * rng.between(1, 60));
  for (int i = 0; i < 32; ++i) table.allocate(256 * kMiB);
  return table;
}

std::uint64_t mixed(std::uint64_t a) {
  a ^= a >> 33;
  a *= 0xff51afd7ed558ccdULL;
  return a ^ (a >> 29);
}

struct Dumped {
  explicit Dumped(const std::vector<Table::Bo>& bos) : list(bos) {
    std::vector<std::uint64_t> bytes;
    for (const Table::Bo& bo : bos) bytes.push_back(bo.bytes);
    layout.emplace(std::move(ImageLayout::make(bytes, kChunkBytes)).value());
    tables = unit_tables(*layout, kSumBlockBytes);
    const UnitIndex units(*layout, kSumBlockBytes);
    each_unit(*layout, units, 0, [this](const SumRange& range) {
      const std::uint64_t name = range.bo == Piece::kHeader ? 0 : list[range.bo].name;
      const std::array<std::uint64_t, 2> sum{mixed(name * 1'000'003 + range.bo_offset),
                                             range.end - range.begin};
      std::memcpy(&tables[0].sums[static_cast<std::size_t>(range.index)], sum.data(), sizeof sum);
    });
  }

  std::vector<Table::Bo> list;
  std::optional<ImageLayout> layout;
  std::vector<SumTable> tables;
};

// Of the bytes that both have, how many are written again: in percent.
double lost(const Table& before, const Table& after) {
  Dumped old(before.list());
  const Dumped now(after.list());
  std::map<std::uint64_t, std::uint32_t> where;
  for (std::uint32_t i = 0; i < old.list.size(); ++i) where[old.list[i].name] = i;
  const KnownFiles parent(std::move(*old.layout), std::move(old.tables), {"parent"});
  std::vector<KnownBo> bos;
  std::uint64_t same = 0;
  for (const Table::Bo& bo : now.list) {
    const auto found = where.find(bo.name);
    bos.push_back(found == where.end() ? KnownBo{} : KnownBo{&parent, found->second});
    if (found != where.end()) same += bo.bytes;
  }
  ContentMatch match(*now.layout, now.tables, std::move(bos));
  Slot slot;
  slot.zero_units.assign(kChunkBytes / kZeroUnitBytes, false);
  slot.known_units.assign(kChunkBytes / kZeroUnitBytes, false);
  for (std::uint64_t i = 0; i < now.layout->chunk_count(); ++i) {
    slot.chunk = now.layout->chunk(i);
    match.take(slot, now.tables[0]);
  }
  return 100.0 * static_cast<double>(same - match.parent_bytes()) / static_cast<double>(same);
}

using Job = Table (*)(Rng&);

class ChangedTables : public testing::TestWithParam<std::pair<const char*, Job>> {
 protected:
  // The loss in percent when `change` happens between two dumps, at most, of ten jobs.
  template <class Change>
  double worst(const char* what, Change change) {
    double most = 0;
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      Rng rng(seed);
      const Table before = GetParam().second(rng);
      Table after = before;
      change(after, rng);
      most = std::max(most, lost(before, after));
    }
    std::printf("shown: %s, %s: at most %.2f %% of what has not changed is written\n", GetParam().first, what,
                most);
    return most;
  }
};

TEST_P(ChangedTables, AnEqualTableLosesNothing) {
  EXPECT_LT(worst("equal table", [](Table&, Rng&) {}), 0.01);
}

TEST_P(ChangedTables, SegmentsThatComeAndGoLoseLittle) {
  EXPECT_LT(worst("eight segments freed, eight others allocated",
                  [](Table& table, Rng& rng) {
                    for (int i = 0; i < 8; ++i) table.free_one(kSegment, rng);
                    for (int i = 0; i < 8; ++i) table.allocate(kSegment * rng.between(1, 128));
                  }),
            0.5);
}

TEST_P(ChangedTables, ASmallBoThatComesOrGoesMovesAllOthers) {
  EXPECT_LT(
      worst("a small BO with a low id freed",
            [](Table& table, Rng& rng) { table.free_id(static_cast<std::uint32_t>(rng.between(0, 39))); }),
      4.0);
  EXPECT_LT(worst("a low id freed, a small BO of another size allocated",
                  [](Table& table, Rng& rng) {
                    table.free_id(static_cast<std::uint32_t>(rng.between(0, 39)));
                    table.allocate(4 * kKiB * rng.between(65, 100));
                  }),
            4.0);
}

INSTANTIATE_TEST_SUITE_P(Of, ChangedTables,
                         testing::Values(std::pair<const char*, Job>{"PyTorch", pytorch},
                                         std::pair<const char*, Job>{"vLLM", vllm}),
                         [](const auto& job) { return job.param.first; });

}  // namespace
}  // namespace sluice
