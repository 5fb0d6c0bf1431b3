// SPDX-License-Identifier: MIT
// BOs of whole blocks come first, each with its record; what is not known stays as the kernel gave it.
#include "kfd/records/bo_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "kfd/records/private_data.h"

namespace sluice::kfd {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

constexpr std::uint32_t kRecordBytes = 80;

// BO i has address i, and a record full of i. Objects follow.
Checkpoint checkpoint_of(const std::vector<std::uint64_t>& bo_bytes) {
  Checkpoint checkpoint;
  checkpoint.devices.resize(2);
  checkpoint.priv_data.assign(bo_records_begin(2), 0xD0);
  for (std::size_t i = 0; i < bo_bytes.size(); ++i) {
    checkpoint.bos.push_back({.addr = i, .bytes = bo_bytes[i]});
    checkpoint.dmabufs.emplace_back();
    checkpoint.priv_data.insert(checkpoint.priv_data.end(), kRecordBytes, static_cast<std::uint8_t>(i));
  }
  checkpoint.priv_data.insert(checkpoint.priv_data.end(), 64, 0x0B);
  return checkpoint;
}

std::vector<std::uint64_t> addresses(const Checkpoint& checkpoint) {
  std::vector<std::uint64_t> all;
  for (const KfdBo& bo : checkpoint.bos) all.push_back(bo.addr);
  return all;
}

TEST(BoOrder, BosOfWholeBlocksComeFirstAndBothKeepTheirOrder) {
  EXPECT_THAT(bo_order(std::vector<std::uint64_t>{4096, kMiB, 0, 5 * kMiB, kMiB + 4096, 2 * kMiB}, kMiB),
              ElementsAre(1, 2, 3, 5, 0, 4));
  EXPECT_THAT(bo_order({}, kMiB), ElementsAre());
}

TEST(BoOrder, EachBoKeepsItsRecordAndNothingElseMoves) {
  Checkpoint checkpoint = checkpoint_of({4096, kMiB, 8192, 2 * kMiB});
  const std::vector<std::uint8_t> before = checkpoint.priv_data;
  put_in_order(checkpoint, kRecordBytes, kMiB);
  EXPECT_THAT(addresses(checkpoint), ElementsAre(1, 3, 0, 2));
  ASSERT_EQ(checkpoint.priv_data.size(), before.size());
  const std::size_t first = bo_records_begin(2);
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::size_t at = 0; at < kRecordBytes; ++at)
      ASSERT_EQ(checkpoint.priv_data[first + i * kRecordBytes + at], addresses(checkpoint)[i]) << i;
  }
  std::vector<std::uint8_t> rest(checkpoint.priv_data.end() - 64, checkpoint.priv_data.end());
  EXPECT_THAT(rest, ElementsAreArray(std::vector<std::uint8_t>(64, 0x0B)));
  for (std::size_t at = 0; at < first; ++at) ASSERT_EQ(checkpoint.priv_data[at], 0xD0);
}

TEST(BoOrder, WithUnknownRecordsNothingMoves) {
  Checkpoint checkpoint = checkpoint_of({4096, kMiB});
  const std::vector<std::uint8_t> before = checkpoint.priv_data;
  put_in_order(checkpoint, 0, kMiB);
  EXPECT_THAT(addresses(checkpoint), ElementsAre(0, 1));
  EXPECT_EQ(checkpoint.priv_data, before);
}

}  // namespace
}  // namespace sluice::kfd
