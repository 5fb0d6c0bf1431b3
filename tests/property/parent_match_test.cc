// SPDX-License-Identifier: MIT
// A dump with a parent writes what has changed, and nothing that it says the parent has. Any BO list, change,
// chunk size and depth: what is read from the file and the parent's are the BOs. Where extents can be shared,
// the file is the one that a serial writer makes of all. Seeded.
#include "pipeline/checksum/content_match.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "pipeline/extents/extent_cloner.h"
#include "pipeline/extents/extent_source.h"
#include "pipeline/store/file_set.h"
#include "support/clone_emulator.h"
#include "support/lane.h"
#include "support/memory_copy.h"
#include "support/rng.h"
#include "support/temp_dir.h"

namespace sluice {
namespace {

using test::BoList;
using test::Bytes;
using test::ReactorKind;
using test::Rng;

constexpr std::uint64_t kSeeds = 60;
constexpr const char* kParentName = "parent.img";

void change(Bytes& bytes, std::uint64_t begin, std::uint64_t length, Rng& rng) {
  if (bytes.empty() || begin >= bytes.size()) return;
  const auto span = std::span(bytes).subspan(begin, std::min<std::uint64_t>(length, bytes.size() - begin));
  if (rng.percent(25)) {
    std::fill(span.begin(), span.end(), std::byte{0});
  } else {
    rng.fill(span);
  }
}

// Units are of 64 KiB from the begin of their BO: whole ones, one too many by a page or a byte, or too few.
std::uint64_t any_size(Rng& rng) {
  const std::uint64_t units = kSumUnitBytes * rng.between(1, 24);
  switch (rng.between(0, 6)) {
    case 0:
      return rng.between(0, 9000);
    case 1:
      return 4096;
    case 2:
      return units;
    case 3:
      return rng.percent(50) ? units + 4096 : units - 4096;
    case 4:
      return rng.percent(50) ? units + 1 : units - 1;
    default:
      return align_up(rng.between(1, 2 * kMiB), 4096);
  }
}

// What processes have in a dump, and in the next one.
struct Memory {
  explicit Memory(Rng& rng) : before(static_cast<std::size_t>(rng.between(1, 7))) {
    for (Bytes& bo : before) {
      bo.resize(any_size(rng));
      rng.fill(bo);
      if (rng.percent(30)) change(bo, 0, bo.size() / 2, rng);
    }
    work(rng);
  }

  BoList before, after;
  std::vector<std::optional<std::uint32_t>> was;  // of each BO of `after`: where it is in `before`
  std::size_t resized = 0;                        // how many of these have another size there

 private:
  // BOs have come, gone, changed in parts, and come back under the same number with another size.
  void work(Rng& rng) {
    for (std::uint32_t i = 0; i < before.size(); ++i) {
      if (rng.percent(10)) {
        rng.fill(after.emplace_back(align_up(rng.between(1, 300'000), 4096)));
        was.emplace_back();
      }
      if (rng.percent(10)) continue;
      Bytes bo = before[i];
      if (rng.percent(15)) bo.resize(any_size(rng));
      if (bo.size() != before[i].size()) ++resized;
      if (rng.percent(60)) change(bo, rng.between(0, bo.size()), rng.between(1, 200'000), rng);
      after.push_back(std::move(bo));
      was.emplace_back(i);
    }
  }
};

template <class Check>
void for_each_seed(Check check) {
  std::size_t resized = 0;
  for (std::uint64_t seed = 0; seed < kSeeds && !testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    Memory memory(rng);
    resized += memory.resized;
    check(seed, memory, rng);
  }
  EXPECT_GT(resized, kSeeds / 10);
}

// Where each byte of the file is: in it, in the parent's as the runs say, or nowhere, where a unit is zero.
ExtentMap map_of(int dir_fd, const KnownRuns& runs, const ImageLayout& layout, const SumTable& table,
                 std::uint64_t parent_bytes) {
  ExtentMap map;
  map.files = {{dir_fd, test::kPagesName, layout.file_bytes(), "own", false},
               {dir_fd, kParentName, parent_bytes, "parent", false}};
  const UnitIndex units(layout, table.block_bytes);
  SumRangeCursor cursor(layout, units, Chunk{0, 0, layout.file_bytes(), 0});
  auto run = runs.runs.begin();
  std::uint64_t run_begin = 0;
  for (SumRange range; cursor.next(range);) {
    Extent extent{range.begin, range.end, 0, range.begin};
    if (run != runs.runs.end() && range.index == run->first_unit + run->units) ++run;
    if (run != runs.runs.end() && range.index == run->first_unit) run_begin = range.begin;
    if (run != runs.runs.end() && range.index >= run->first_unit) {
      extent.file = 1;
      extent.offset = run->offset + (range.begin - run_begin);
    }
    if (table.sums[range.index] == table.method.of_zeros(range.end - range.begin))
      extent = {range.begin, range.end, Extent::kZeros, 0};
    map.extents.push_back(extent);
  }
  return map;
}

std::uint64_t bytes_on_disk(const test::TempDir& dir, const char* name) {
  struct stat status {};
  EXPECT_EQ(::fstatat(dir.fd(), name, &status, 0), 0);
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

TEST(ContentMatch, TheFileAndTheParentsAreReadBackAsTheBos) {
  const test::TempDir dir;
  test::TestWorld world(ReactorKind::Threads);
  std::uint64_t left_out = 0;
  for_each_seed([&](std::uint64_t seed, Memory& memory, Rng& rng) {
    const BoList& before = memory.before;
    BoList& after = memory.after;
    const std::uint64_t chunk_bytes = 64 * kKiB << rng.between(0, 5);
    const std::uint64_t block_bytes = chunk_bytes >> rng.between(0, 1);

    ImageLayout old_layout = std::move(ImageLayout::make(test::sizes_of(before), chunk_bytes)).value();
    std::vector<SumTable> old_tables{test::serial_sums(before, block_bytes)};
    const KnownFiles parent(std::move(old_layout), std::move(old_tables), {kParentName});

    const ImageLayout layout = std::move(ImageLayout::make(test::sizes_of(after), chunk_bytes)).value();
    std::vector<SumTable> tables = unit_tables(layout, block_bytes);
    std::vector<KnownBo> bos;
    for (const auto& bo : memory.was) bos.push_back(bo ? KnownBo{&parent, *bo} : KnownBo{});
    ContentMatch match(layout, tables, std::move(bos));

    const auto lane = test::make_lane(layout, static_cast<std::uint32_t>(rng.between(1, 5)), world);
    FileSetSink sink(dir.fd(), {test::kPagesName}, layout, lane->reactor(),
                     FileOptions{.holes = rng.percent(70), .sync = false});
    test::MemoryCopy copy(Direction::Dump, layout, lane->reactor(), after);
    const auto checksum = std::move(make_checksum(*lane, Direction::Dump, tables, {.match = &match}, nullptr,
                                                  rng.percent(40) ? 2 : 0))
                              .value();
    const auto stats = lane->run(Route{&copy, checksum.get(), &sink});
    ASSERT_TRUE(stats.ok()) << stats.error().what;
    ASSERT_TRUE(sink.commit().ok());

    const Bytes expected = test::serial_file(after);
    ASSERT_EQ(tables[0].sums, test::serial_sums(after, block_bytes).sums);
    const KnownRuns runs = match.runs(0).parents;
    EXPECT_LE(bytes_on_disk(dir, test::kPagesName) + match.parent_bytes(),
              align_up(expected.size(), 4096) + 2 * kZeroUnitBytes * (runs.runs.size() + 1));

    dir.write(kParentName, test::serial_file(before));
    BoList restored;
    for (const Bytes& bo : after) restored.emplace_back(bo.size(), std::byte{0x5a});
    ExtentSource source({map_of(dir.fd(), runs, layout, tables[0], parent.layout.file_bytes())}, layout,
                        lane->reactor(),
                        FileOptions{.io_mode = seed % 2 == 0 ? IoMode::Uncached : IoMode::Auto});
    test::MemoryCopy back(Direction::Restore, layout, lane->reactor(), restored);
    const auto verify = std::move(make_checksum(*lane, Direction::Restore, tables, {}, nullptr, 0)).value();
    const auto read = lane->run(Route{&back, verify.get(), &source}.towards(Direction::Restore));
    ASSERT_TRUE(read.ok()) << read.error().what;
    ASSERT_TRUE(restored == after);
    left_out += match.parent_bytes();
  });
  EXPECT_GT(left_out, 40 * kMiB);
}

// Dumps `after` into kPagesName, on the parent's file of `before`. What it has written and cloned.
struct CloneRunOf {
  std::uint64_t block_bytes = 4096;  // of the file system
  std::uint64_t chunk_bytes = kMiB;
  std::uint32_t depth = 2;
  unsigned workers = 0;
  FileOptions file = {};
};
Result<std::uint64_t> dump_with_clones(const test::TempDir& dir, BoList& before,
                                       const std::vector<std::optional<std::uint32_t>>& was, BoList& after,
                                       const CloneRunOf& run, test::TestWorld& world, const CloneCall& call) {
  SLUICE_TRY_ASSIGN(ImageLayout old_layout, ImageLayout::make(test::sizes_of(before), run.chunk_bytes));
  dir.write(kParentName, test::serial_file(before));
  EXPECT_EQ(::fchmodat(dir.fd(), kParentName, 0600, 0), 0);
  const std::uint64_t sum_block = std::min(run.chunk_bytes, kSumBlockBytes);
  const KnownFiles parent(std::move(old_layout), {test::serial_sums(before, sum_block)}, {kParentName},
                          dir.fd());
  SLUICE_TRY_ASSIGN(const ImageLayout layout, ImageLayout::make(test::sizes_of(after), run.chunk_bytes));
  std::vector<SumTable> tables = unit_tables(layout, sum_block);
  std::vector<KnownBo> bos;
  for (const auto& bo : was) bos.push_back(bo ? KnownBo{&parent, *bo} : KnownBo{});
  ContentMatch match(layout, tables, std::move(bos), run.block_bytes);
  const auto lane = test::make_lane(layout, run.depth, world);
  SLUICE_TRY_ASSIGN(const auto cloner,
                    ExtentCloner::start({.runs = [&match](std::uint32_t file) { return match.clones(file); },
                                         .sums = {&layout, tables},
                                         .call = call},
                                        *lane));
  FileOptions options = run.file;
  options.cloner = cloner.get();
  FileSetSink sink(dir.fd(), {test::kPagesName}, layout, lane->reactor(), options);
  test::MemoryCopy copy(Direction::Dump, layout, lane->reactor(), after);
  SLUICE_TRY_ASSIGN(const auto checksum,
                    make_checksum(*lane, Direction::Dump, tables, {.match = &match}, nullptr, run.workers));
  SLUICE_TRY_ASSIGN(const auto stats, lane->run(Route{&copy, checksum.get(), &sink}));
  (void)stats;
  SLUICE_TRY(sink.commit());
  EXPECT_EQ(tables[0].sums, test::serial_sums(after, sum_block).sums);
  return match.parent_bytes();
}

TEST(ParentClones, TheFileIsTheOneThatASerialWriterMakes) {
  const test::TempDir dir;
  test::TestWorld world(ReactorKind::Threads);
  std::uint64_t cloned = 0;
  for_each_seed([&](std::uint64_t /*seed*/, Memory& memory, Rng& rng) {
    const CloneRunOf run{.block_bytes = std::uint64_t{512} << rng.between(0, 7),
                         .chunk_bytes = 64 * kKiB << rng.between(0, 5),
                         .depth = static_cast<std::uint32_t>(rng.between(1, 5)),
                         .workers = rng.percent(40) ? 2U : 0U,
                         .file = {.holes = rng.percent(70), .sync = rng.percent(50)}};
    test::CloneEmulator emulator(run.block_bytes);
    const auto left_out =
        dump_with_clones(dir, memory.before, memory.was, memory.after, run, world,
                         [&emulator](int from_fd, std::uint64_t from, std::uint64_t bytes, int to_fd,
                                     std::uint64_t to) { return emulator(from_fd, from, bytes, to_fd, to); });
    ASSERT_TRUE(left_out.ok()) << left_out.error().what;
    ASSERT_TRUE(dir.read(test::kPagesName) == test::serial_file(memory.after));
    // What is not written is cloned.
    EXPECT_EQ(*left_out, emulator.bytes());
    cloned += emulator.bytes();
  });
  EXPECT_GT(cloned, 20 * kMiB);
}

// A page in front of all else: every unit is a page further on, but those that 1 MiB of the file cuts.
TEST(ParentClones, WhatHasMovedByBlocksIsClonedAndByLessIsWritten) {
  const test::TempDir dir;
  test::TestWorld world(ReactorKind::Threads);
  Rng rng(3);
  BoList before{Bytes(8 * kMiB)};
  rng.fill(before[0]);
  for (const std::uint64_t block_bytes : {4096U, 8192U}) {
    BoList after{Bytes(4096, std::byte{1}), before[0]};
    test::CloneEmulator emulator(block_bytes);
    const auto left_out =
        dump_with_clones(dir, before, {std::nullopt, 0}, after, {.block_bytes = block_bytes}, world,
                         [&emulator](int from_fd, std::uint64_t from, std::uint64_t bytes, int to_fd,
                                     std::uint64_t to) { return emulator(from_fd, from, bytes, to_fd, to); });
    ASSERT_TRUE(left_out.ok()) << left_out.error().what;
    ASSERT_TRUE(dir.read(test::kPagesName) == test::serial_file(after));
    if (block_bytes == 4096) {
      EXPECT_GT(emulator.bytes(), 6 * kMiB);
      EXPECT_LE(emulator.calls(), 9U);  // as few stretches as there are
    } else {
      EXPECT_EQ(emulator.calls(), 0U);
    }
  }
}

// The file system shares some blocks and not others, as ZFS does with new ones.
TEST(ParentClones, WhatIsRefusedIsCopied) {
  const test::TempDir dir;
  test::TestWorld world(ReactorKind::Threads);
  std::atomic<std::uint64_t> refused = 0;
  for_each_seed([&](std::uint64_t /*seed*/, Memory& memory, Rng& rng) {
    const CloneRunOf run{.block_bytes = 4096,
                         .chunk_bytes = 64 * kKiB << rng.between(0, 5),
                         .depth = static_cast<std::uint32_t>(rng.between(1, 5))};
    test::CloneEmulator emulator;
    const auto all = dump_with_clones(
        dir, memory.before, memory.was, memory.after, run, world,
        [&](int from_fd, std::uint64_t from, std::uint64_t bytes, int to_fd, std::uint64_t to) {
          constexpr int kRefusals[] = {EAGAIN, EINVAL, EOPNOTSUPP, EXDEV};
          if (from / kMiB % 2 == 0) return emulator(from_fd, from, bytes, to_fd, to);
          refused += bytes;
          return kRefusals[from / kMiB / 2 % 4];
        });
    ASSERT_TRUE(all.ok()) << all.error().what;
    ASSERT_TRUE(dir.read(test::kPagesName) == test::serial_file(memory.after));
  });
  EXPECT_GT(refused, 2 * kMiB);
}

// A clone would have had it unseen.
TEST(ParentClones, WhatIsCopiedIsComparedWithItsSums) {
  const test::TempDir dir;
  test::TestWorld world(ReactorKind::Threads);
  Rng rng(6);
  BoList bos{Bytes(2 * kMiB)};
  rng.fill(bos[0]);
  const auto failed = dump_with_clones(
      dir, bos, {0}, bos, {}, world, [&dir](int, std::uint64_t, std::uint64_t, int, std::uint64_t) {
        const UniqueFd parent(::openat(dir.fd(), kParentName, O_WRONLY | O_CLOEXEC));
        EXPECT_EQ(::pwrite(parent.get(), "rot", 3, kMiB), 3);
        return EAGAIN;
      });
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().err, EBADMSG);
  EXPECT_NE(failed.error().what.find("[SL-C90]"), std::string::npos) << failed.error().what;
  EXPECT_EQ(dir.names(), std::vector<std::string>{kParentName});
}

// Its bytes are in no memory any more: the dump fails, as when a write does, and nothing has the name.
TEST(ParentClones, AFailedCloneFailsTheDump) {
  test::TestWorld world(ReactorKind::Threads);
  for (const int err : {ENOSPC, EDQUOT, EIO}) {
    const test::TempDir dir;
    Rng rng(4);
    BoList bos{Bytes(2 * kMiB)};
    rng.fill(bos[0]);
    const auto failed = dump_with_clones(
        dir, bos, {0}, bos, {}, world,
        [err](int /*from_fd*/, std::uint64_t, std::uint64_t, int /*to_fd*/, std::uint64_t) { return err; });
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().err, err);
    EXPECT_NE(failed.error().what.find("the parent's parent.img [65536, "), std::string::npos)
        << failed.error().what;
    EXPECT_EQ(dir.names(), std::vector<std::string>{kParentName});
  }
}

// Another file than was asked for has come to the name.
TEST(ParentClones, AnExchangedParentIsNotCloned) {
  const test::TempDir dir;
  Rng rng(5);
  BoList bos{Bytes(2 * kMiB)};
  rng.fill(bos[0]);
  dir.write(kParentName, test::serial_file(bos));
  const UniqueFd target(::openat(dir.fd(), "new", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  test::CloneEmulator emulator;
  const CloneCall call = [&emulator](int from_fd, std::uint64_t from, std::uint64_t bytes, int to_fd,
                                     std::uint64_t to) { return emulator(from_fd, from, bytes, to_fd, to); };
  const CloneRuns runs{{{dir.fd(), kParentName, 2 * kMiB + kHeaderBytes, "p", true}}, {{0, kMiB, 0, 0}}};
  EXPECT_EQ(::fchmodat(dir.fd(), kParentName, 0644, 0), 0);
  EXPECT_EQ(clone_runs(target.get(), "new", runs, call).error().err, EACCES);
  EXPECT_EQ(::fchmodat(dir.fd(), kParentName, 0600, 0), 0);
  EXPECT_TRUE(clone_runs(target.get(), "new", runs, call).ok());
  const std::atomic<bool> stopped{true};
  EXPECT_EQ(clone_runs(target.get(), "new", runs, call, &stopped).error().err, ECANCELED);
  dir.write(kParentName, Bytes(kMiB, std::byte{1}));
  EXPECT_EQ(clone_runs(target.get(), "new", runs, call).error().err, EBADMSG);
}

// Nothing has changed: one part of the file is written, for its length, and one chunk has a turn on the disk.
TEST(ContentMatch, WhereNothingHasChangedAlmostNothingIsWritten) {
  const test::TempDir dir;
  test::TestWorld world(ReactorKind::Threads);
  Rng rng(1);
  BoList bos{Bytes(5 * kMiB)};
  rng.fill(bos[0]);
  const KnownFiles parent(std::move(ImageLayout::make(test::sizes_of(bos), kMiB)).value(),
                          {test::serial_sums(bos, kMiB)}, {kParentName});
  const ImageLayout layout = std::move(ImageLayout::make(test::sizes_of(bos), kMiB)).value();
  std::vector<SumTable> tables = unit_tables(layout, kMiB);
  ContentMatch match(layout, tables, {KnownBo{&parent, 0}});
  const auto lane = test::make_lane(layout, 2, world);
  FileSetSink sink(dir.fd(), {test::kPagesName}, layout, lane->reactor(), {});
  test::MemoryCopy copy(Direction::Dump, layout, lane->reactor(), bos);
  const auto checksum =
      std::move(make_checksum(*lane, Direction::Dump, tables, {.match = &match}, nullptr, 0)).value();
  ASSERT_TRUE(lane->run(Route{&copy, checksum.get(), &sink}).ok());
  ASSERT_TRUE(sink.commit().ok());
  EXPECT_EQ(bytes_on_disk(dir, test::kPagesName), kZeroUnitBytes);
  EXPECT_EQ(match.parent_bytes(), layout.file_bytes() - kZeroUnitBytes);
  const KnownRuns runs = match.runs(0).parents;
  ASSERT_EQ(runs.files, std::vector<std::string>{kParentName});
  ASSERT_EQ(runs.runs.size(), 1U);
  EXPECT_EQ(runs.runs[0].offset, 8U);
}

// Sums by another method, or with another secret, are nobody's equals.
TEST(ContentMatch, OtherSumsMatchNothing) {
  BoList bos{Bytes(2 * kMiB, std::byte{7})};
  const ImageLayout layout = std::move(ImageLayout::make(test::sizes_of(bos), kMiB)).value();
  std::vector<SumTable> tables{test::serial_sums(bos, kMiB)};
  ASSERT_TRUE(load_mac().ok());
  for (const SumMethod& method : {SumMethod(MacKey{1}), SumMethod(SumSecret{}), SumMethod()}) {
    SumTable other = tables[0];
    other.method = method;
    const KnownFiles parent(std::move(ImageLayout::make(test::sizes_of(bos), kMiB)).value(), {other}, {"p"});
    ContentMatch match(layout, tables, {KnownBo{&parent, 0}});
    test::LaneMemory memory(kMiB, 1);
    Slot& slot = memory.slots[0];
    slot.chunk = layout.chunk(1);
    slot.zero_units.assign(kMiB / kZeroUnitBytes, false);
    slot.known_units.assign(kMiB / kZeroUnitBytes, false);
    match.take(slot, tables[0]);
    const bool same = method == SumMethod();
    EXPECT_EQ(std::count(slot.known_units.begin(), slot.known_units.end(), true) == 0, !same);
    EXPECT_EQ(match.runs(0).parents.empty(), !same);
  }
}

}  // namespace
}  // namespace sluice
