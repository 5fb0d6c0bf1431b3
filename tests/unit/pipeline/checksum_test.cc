// SPDX-License-Identifier: MIT
// The checksum stage: sums equal an independent XXH3-128, zero units are found, corruption is named.
#include "pipeline/checksum/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/units.h"
#include "pipeline/checksum/checksum_kernels.h"
#include "pipeline/reactor/thread_reactor.h"
#include "support/equal_sums.h"
#include "support/memory_copy.h"
#include "support/rng.h"

namespace sluice {
namespace {

using test::Bytes;
using test::Rng;

constexpr std::uint64_t kChunk = 256 * kKiB;
constexpr std::uint64_t kBlock = 128 * kKiB;

std::span<const std::byte> text(const char* words) {
  return std::as_bytes(std::span(words, std::strlen(words)));
}

SumMethod with_secret(std::uint64_t seed) {
  SumSecret secret;
  Rng(seed).fill(std::as_writable_bytes(std::span(secret.bytes)));
  return SumMethod(secret);
}

TEST(ZeroSums, AreThoseOfZerosByEachMethodAndLength) {
  ZeroSums sums;
  const SumMethod plain;
  ASSERT_TRUE(load_mac().ok());
  const SumMethod keyed(MacKey{1, 2, 3});
  for (int round = 0; round < 2; ++round) {
    for (const SumMethod& method : {plain, keyed, with_secret(1), with_secret(2)}) {
      for (const std::uint64_t length : {std::uint64_t{8}, 4 * kKiB, kMiB})
        EXPECT_EQ(sums.of(method, length), method.of(Bytes(length))) << method.name() << ' ' << length;
    }
  }
}

// One slot and a stage around one BO of `payload_bytes`; the buffer is filled by the test.
struct Fixture {
  explicit Fixture(std::uint64_t payload_bytes)
      : layout(std::move(ImageLayout::make(std::array{payload_bytes}, kChunk)).value()),
        reactor(std::move(ThreadReactor::make(1, 4)).value()),
        table(unit_tables(layout, kBlock).front()),
        buffer(kChunk) {
    slot.buffer = buffer;
    slot.zero_units.assign(kChunk / kZeroUnitBytes, false);
    for (Op& op : slot.ops) op.slot = &slot;
  }

  ChecksumStage stage(Direction direction, bool with_table = true, const ChecksumOptions& options = {}) {
    return ChecksumStage(
        direction, layout, *reactor, {&table, with_table ? 1U : 0U}, options,
        [](std::uint32_t, std::uint64_t offset, std::uint64_t) { return "BO at " + std::to_string(offset); });
  }

  // Runs `chunk` through `stage` and returns what it said at last.
  Result<void> run(ChecksumStage& stage, std::uint64_t chunk) {
    slot.chunk = layout.chunk(chunk);
    SLUICE_TRY(stage.submit(slot));
    std::array<Completion, 1> completions;
    SLUICE_TRY(reactor->wait(completions));
    SLUICE_TRY_ASSIGN(const Progress progress,
                      stage.advance(slot, *completions[0].op, completions[0].result));
    EXPECT_EQ(progress, Progress::Done);
    return {};
  }

  void put_header() {
    const std::uint64_t payload_bytes = layout.payload_bytes();
    std::memcpy(buffer.data(), &payload_bytes, sizeof payload_bytes);
  }

  ImageLayout layout;
  std::unique_ptr<ThreadReactor> reactor;
  SumTable table;
  Bytes buffer;
  Slot slot;
};

std::vector<bool> units(std::initializer_list<int> flags) {
  return std::vector<bool>(flags.begin(), flags.end());
}

// Values published with XXH3 (xxhsum -H2), seed 0.
TEST(Sum, KnownAnswers) {
  const Sum128 empty{0x99, 0xaa, 0x06, 0xd3, 0x01, 0x47, 0x98, 0xd8,
                     0x60, 0x01, 0xc3, 0x24, 0x46, 0x8d, 0x49, 0x7f};
  EXPECT_EQ(sum_of({}), empty);
  const Sum128 a{0xa9, 0x6f, 0xaf, 0x70, 0x5a, 0xf1, 0x68, 0x34,
                 0xe6, 0xc6, 0x32, 0xb6, 0x1e, 0x96, 0x4e, 0x1f};
  EXPECT_EQ(sum_of(text("a")), a);
}

TEST(Sum, ContentsMadeToHaveOneSumDifferWithASecret) {
  const auto [one, other] = test::contents_with_one_sum(kSumUnitBytes);
  ASSERT_NE(one, other);
  ASSERT_EQ(sum_of(one), sum_of(other)) << "XXH3 without a secret";
  EXPECT_FALSE(SumMethod().decides());
  EXPECT_NE(with_secret(1).of(one), with_secret(1).of(other));
  EXPECT_TRUE(with_secret(1).decides());
  EXPECT_TRUE(SumMethod(MacKey{1}).decides());
}

TEST(Sum, MethodsAreEqualIfTheyGiveEqualBytesEqualSums) {
  EXPECT_EQ(with_secret(1), with_secret(1));
  EXPECT_EQ(with_secret(1).of(text("a")), with_secret(1).of(text("a")));
  EXPECT_NE(with_secret(1), with_secret(2));
  EXPECT_NE(with_secret(1).of(text("a")), with_secret(2).of(text("a")));
  EXPECT_NE(with_secret(1), SumMethod());
  EXPECT_NE(with_secret(1).of(text("a")), sum_of(text("a")));
}

#if defined(__x86_64__)
void expect_same_as_baseline(decltype(&detail::xxh3_128_baseline) kernel) {
  Rng rng(1);
  Bytes bytes(300'000);
  rng.fill(bytes);
  for (const std::size_t length : {0, 1, 16, 17, 128, 129, 240, 241, 1024, 4096, 65536, 299'999}) {
    for (const std::size_t skew : {0, 1, 8}) {
      const std::size_t count = std::min(length, bytes.size() - skew);
      const auto* const other_secret = reinterpret_cast<const unsigned char*>(&bytes[1000]);
      for (const unsigned char* const secret : {static_cast<const unsigned char*>(nullptr), other_secret}) {
        Sum128 baseline{};
        Sum128 wide{};
        detail::xxh3_128_baseline(&bytes[skew], count, secret, baseline.data());
        kernel(&bytes[skew], count, secret, wide.data());
        EXPECT_EQ(baseline, wide) << length << " at " << skew;
      }
    }
  }
}

TEST(Sum, Avx2GivesTheSame) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this CPU has no AVX2";
  expect_same_as_baseline(detail::xxh3_128_avx2);
}
#endif

TEST(IsZero, FindsOneByteAnywhere) {
  for (const std::size_t length : {1, 7, 8, 63, 64, 65, 127, 128, 129, 1000, 4096}) {
    Bytes bytes(length);
    EXPECT_TRUE(is_zero(bytes));
    for (std::size_t at = 0; at < length; ++at) {
      bytes[at] = std::byte{1};
      EXPECT_FALSE(is_zero(bytes)) << at << " of " << length;
      bytes[at] = std::byte{0};
    }
  }
  EXPECT_TRUE(is_zero({}));
}

// A BO of 512 KiB after the file's length: its units begin at 8, 64 KiB + 8, 128 KiB + 8 and so on, and a
// block's end cuts every second one in two.
TEST(ChecksumDump, SumsEveryUnitAndMarksZeros) {
  Fixture at(2 * kChunk);
  auto stage = at.stage(Direction::Dump);
  Rng rng(7);
  const auto sum_at = [&](std::uint64_t begin, std::uint64_t end) {
    return sum_of(std::span(at.buffer).subspan(begin, end - begin));
  };

  rng.fill(at.buffer);
  std::fill_n(at.buffer.begin() + kZeroUnitBytes, kZeroUnitBytes, std::byte{0});
  ASSERT_TRUE(at.run(stage, 0).ok());
  EXPECT_EQ(at.slot.zero_units, units({0, 1, 0, 0}));
  EXPECT_EQ(at.table.sums[0], sum_at(0, 8)) << "the length";
  EXPECT_EQ(at.table.sums[1], sum_at(8, kSumUnitBytes + 8));
  EXPECT_EQ(at.table.sums[2], sum_at(kSumUnitBytes + 8, kBlock));
  EXPECT_EQ(at.table.sums[3], sum_at(kBlock, kBlock + 8));
  EXPECT_EQ(at.table.sums[4], sum_at(kBlock + 8, kBlock + kSumUnitBytes + 8));

  std::fill(at.buffer.begin(), at.buffer.end(), std::byte{0});
  at.buffer[kBlock - 1] = std::byte{1};
  ASSERT_TRUE(at.run(stage, 1).ok());
  EXPECT_EQ(at.slot.zero_units, units({1, 0, 1, 1}));
  EXPECT_EQ(at.table.sums[6], sum_of(Bytes(8)));
  EXPECT_EQ(at.table.sums[7], sum_of(Bytes(kSumUnitBytes)));
  EXPECT_EQ(at.table.sums[8], sum_at(kSumUnitBytes + 8, kBlock));

  EXPECT_EQ(stage.finish().error().err, EIO) << "the tail was never seen";
  at.buffer[3] = std::byte{9};
  ASSERT_TRUE(at.run(stage, 2).ok());  // eight bytes; what lies behind them in the buffer does not count
  EXPECT_EQ(at.table.sums.back(), sum_of(std::span(at.buffer).first(8)));
  EXPECT_FALSE(at.slot.zero_units[0]);
  EXPECT_TRUE(stage.finish().ok());
  EXPECT_EQ(at.run(stage, 1).error().err, EIO) << "a chunk came twice";
}

TEST(ChecksumDump, AZeroTailIsZeros) {
  Fixture at(kChunk);
  auto stage = at.stage(Direction::Dump);
  std::fill(at.buffer.begin(), at.buffer.begin() + 8, std::byte{0});
  std::fill(at.buffer.begin() + 8, at.buffer.end(), std::byte{0xff});
  ASSERT_TRUE(at.run(stage, 1).ok());
  EXPECT_TRUE(at.slot.zero_units[0]);
  EXPECT_EQ(at.table.sums.back(), sum_of(Bytes(8)));
}

TEST(ChecksumDump, WithoutATableZeroUnitsAreStillFound) {
  Fixture at(2 * kChunk);
  auto stage = at.stage(Direction::Dump, false);
  std::fill(at.buffer.begin(), at.buffer.end(), std::byte{0});
  at.buffer[0] = std::byte{1};
  ASSERT_TRUE(at.run(stage, 1).ok());
  EXPECT_EQ(at.slot.zero_units, units({0, 1, 1, 1}));
  EXPECT_TRUE(stage.finish().ok());
}

TEST(ChecksumRestore, AcceptsWhatWasSummed) {
  Fixture at(kChunk);
  Rng rng(3);
  rng.fill(at.buffer);
  at.put_header();
  auto dump = at.stage(Direction::Dump);
  ASSERT_TRUE(at.run(dump, 0).ok());
  ASSERT_TRUE(at.run(dump, 1).ok());
  auto restore = at.stage(Direction::Restore);
  EXPECT_TRUE(at.run(restore, 0).ok());
  EXPECT_TRUE(at.run(restore, 1).ok());
  EXPECT_TRUE(restore.finish().ok());
}

TEST(ChecksumRestore, NamesTheUnitAndTheBoOfAFlippedBit) {
  Fixture at(kChunk);
  Rng rng(4);
  rng.fill(at.buffer);
  at.put_header();
  auto dump = at.stage(Direction::Dump);
  ASSERT_TRUE(at.run(dump, 0).ok());
  at.buffer[kBlock + 5] ^= std::byte{0x10};
  auto restore = at.stage(Direction::Restore);
  const auto verdict = at.run(restore, 0);
  ASSERT_FALSE(verdict.ok());
  EXPECT_EQ(verdict.error().err, EBADMSG);
  EXPECT_NE(verdict.error().what.find("unit 3 is corrupt"), std::string::npos) << verdict.error().what;
  EXPECT_NE(verdict.error().what.find("[131072, 131080)"), std::string::npos) << verdict.error().what;
  EXPECT_NE(verdict.error().what.find("BO at 131072"), std::string::npos) << verdict.error().what;
}

// Another file may have what this one should: it counts if its sum is right.
TEST(ChecksumRestore, AUnitThatDiffersIsReadAgainOnce) {
  Fixture fixture(kChunk - kHeaderBytes);
  Rng(1).fill(fixture.buffer);
  fixture.put_header();
  ChecksumStage dump = fixture.stage(Direction::Dump);
  ASSERT_TRUE(fixture.run(dump, 0).ok());
  const Bytes good = fixture.buffer;
  for (const bool is_good : {true, false}) {
    fixture.buffer[100'000] ^= std::byte{1};
    std::size_t asked = 0;
    ChecksumOptions options;
    options.read_again = [&](std::uint32_t file, std::uint64_t offset, std::span<std::byte> into) {
      ++asked;
      EXPECT_EQ(file, 0U);
      EXPECT_LE(offset, 100'000U);
      EXPECT_GT(offset + into.size(), 100'000U);
      if (is_good) std::copy_n(good.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
      return is_good;
    };
    ChecksumStage restore = fixture.stage(Direction::Restore, true, options);
    const auto done = fixture.run(restore, 0);
    EXPECT_EQ(asked, 1U);
    EXPECT_EQ(done.ok(), is_good);
    EXPECT_EQ(fixture.buffer == good, is_good);
    fixture.buffer = good;
    fixture.slot.buffer = fixture.buffer;
  }
}

TEST(ChecksumRestore, HolesCountAsZerosWhateverTheBufferHolds) {
  Fixture at(2 * kChunk);
  Rng rng(5);
  rng.fill(at.buffer);
  std::fill(at.buffer.begin() + kZeroUnitBytes, at.buffer.end(), std::byte{0});
  auto dump = at.stage(Direction::Dump);
  ASSERT_TRUE(at.run(dump, 1).ok());

  std::fill(at.buffer.begin() + kZeroUnitBytes, at.buffer.end(), std::byte{0xee});
  at.slot.zero_units = units({0, 1, 1, 1});
  auto restore = at.stage(Direction::Restore);
  EXPECT_TRUE(at.run(restore, 1).ok());
  EXPECT_EQ(at.buffer[kZeroUnitBytes], std::byte{0}) << "the hole of a mixed unit was given its zeros";
  EXPECT_EQ(at.buffer[kBlock], std::byte{0xee}) << "a unit of holes was not touched";
}

TEST(ChecksumRestore, AHoleWhereDataWasIsCorrupt) {
  Fixture at(2 * kChunk);
  Rng rng(6);
  rng.fill(at.buffer);
  auto dump = at.stage(Direction::Dump);
  ASSERT_TRUE(at.run(dump, 1).ok());
  at.slot.zero_units = units({0, 0, 1, 1});
  auto restore = at.stage(Direction::Restore);
  EXPECT_EQ(at.run(restore, 1).error().err, EBADMSG);
}

TEST(ChecksumRestore, TheHeaderIsCheckedWithoutATableToo) {
  Fixture at(2 * kChunk);
  auto good = at.stage(Direction::Restore, false);
  at.put_header();
  EXPECT_TRUE(at.run(good, 0).ok());
  at.buffer[0] ^= std::byte{1};
  const auto verdict = at.run(good, 0);
  ASSERT_FALSE(verdict.ok());
  EXPECT_EQ(verdict.error().err, EBADMSG);
  EXPECT_NE(verdict.error().what.find("524289"), std::string::npos) << verdict.error().what;
  at.put_header();
  at.slot.zero_units[0] = true;  // a hole says: no contents
  EXPECT_EQ(at.run(good, 0).error().err, EBADMSG);
}

TEST(ChecksumRestore, AnEmptyImageHasAZeroHeaderWhichMayBeAHole) {
  Fixture at(0);
  at.table.sums[0] = sum_of(Bytes(8));
  auto stage = at.stage(Direction::Restore);
  at.slot.zero_units[0] = true;
  EXPECT_TRUE(at.run(stage, 0).ok());
  EXPECT_TRUE(stage.finish().ok());
}

}  // namespace
}  // namespace sluice
