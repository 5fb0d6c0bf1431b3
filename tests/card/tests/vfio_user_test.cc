// SPDX-License-Identifier: MIT
// The answer to each message of QEMU, and to what is nearly one.
#include "bus/vfio_user.h"

#include <gtest/gtest.h>
#include <linux/vfio.h>
#include <sys/stat.h>

#include <cerrno>
#include <functional>
#include <optional>

#include "bus_kit.h"

namespace sluice::card::tests {
namespace {

struct Answer {
  int error = -1;
  Bytes body;
  int fd = -1;
};

class VfioUserTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(say(kVersion, version_body()).error, 0); }

  // The reply's header must fit what was asked.
  Answer say(std::uint16_t command, const Bytes& body, std::vector<UniqueFd> fds = {}) {
    VfioUserRequest request{{++id_, command, 0, 0, 0}, body, std::move(fds)};
    std::optional<VfioUserReply> reply = card_.session.answer(std::move(request));
    if (!reply) return {};
    VfioUserHeader header;
    std::memcpy(&header, reply->message.data(), sizeof header);
    EXPECT_EQ(header.id, id_);
    EXPECT_EQ(header.command, command);
    EXPECT_EQ(header.bytes, reply->message.size());
    const bool failed = header.error != 0;
    EXPECT_EQ(header.flags, VfioUserHeader::kReply | (failed ? VfioUserHeader::kError : 0));
    return {static_cast<int>(header.error),
            Bytes(reply->message.begin() + sizeof header, reply->message.end()), reply->fd};
  }
  Answer say(std::uint16_t command, const Bytes& body, UniqueFd fd) {
    std::vector<UniqueFd> fds;
    fds.push_back(std::move(fd));
    return say(command, body, std::move(fds));
  }

  TestCard card_;
  std::uint16_t id_ = 0;
};

TEST(VfioUserVersionTest, NothingIsAnsweredBeforeAVersionIsAgreedOn) {
  TestCard card;
  const auto error_of = [&card](std::uint16_t command, const Bytes& body) {
    const auto reply = card.session.answer({{1, command, 0, 0, 0}, body, {}});
    return value_at<std::uint32_t>(reply->message, 12);
  };
  EXPECT_EQ(error_of(kReset, {}), EINVAL);
  EXPECT_EQ(error_of(kVersion, version_body(1)), EINVAL) << "another major version";
  EXPECT_EQ(error_of(kVersion, Bytes(3)), EINVAL);
  EXPECT_EQ(error_of(kVersion, Packed().u16(0).u16(0).u32(0x7b7b7b7b)), EINVAL) << "text that does not end";
  EXPECT_EQ(card.device.resets, 0);
  EXPECT_EQ(error_of(kVersion, version_body()), 0U);
  EXPECT_EQ(error_of(kVersion, version_body()), EINVAL) << "a second time";
  EXPECT_EQ(error_of(kReset, {}), 0U);
}

TEST_F(VfioUserTest, DeviceIsPciWithNineRegionsAndFiveInterrupts) {
  const Answer info = say(kDeviceInfo, Packed().u32(16).u32(0).u32(0).u32(0));
  ASSERT_EQ(info.error, 0);
  EXPECT_EQ(value_at<std::uint32_t>(info.body, 4), VFIO_DEVICE_FLAGS_RESET | VFIO_DEVICE_FLAGS_PCI);
  EXPECT_EQ(value_at<std::uint32_t>(info.body, 8), 9U);
  EXPECT_EQ(value_at<std::uint32_t>(info.body, 12), 5U);
}

TEST_F(VfioUserTest, RegionsAreThoseOfTheCard) {
  const std::uint64_t sizes[] = {kTestVram, 0, 2 << 20, 0, 0, 512 << 10, 8192, 4096, 0};
  for (std::uint32_t index = 0; index < 9; ++index) {
    const Answer info = say(kRegionInfo, region_info_body(index));
    ASSERT_EQ(info.error, 0) << index;
    EXPECT_EQ(value_at<std::uint32_t>(info.body, 8), index);
    EXPECT_EQ(value_at<std::uint64_t>(info.body, 16), sizes[index]) << index;
    const std::uint32_t flags = value_at<std::uint32_t>(info.body, 4);
    EXPECT_EQ((flags & VFIO_REGION_INFO_FLAG_READ) != 0, sizes[index] != 0) << index;
    EXPECT_EQ((flags & VFIO_REGION_INFO_FLAG_WRITE) != 0, sizes[index] != 0 && index != 6) << index;
    EXPECT_EQ((flags & VFIO_REGION_INFO_FLAG_MMAP) != 0, index == 0) << index;
    EXPECT_EQ(info.fd, index == 0 ? card_.vram.fd() : -1) << index;
  }
  EXPECT_EQ(say(kRegionInfo, region_info_body(9)).error, EINVAL);
}

TEST_F(VfioUserTest, MsiIsTheOnlyInterrupt) {
  for (std::uint32_t index = 0; index < 5; ++index) {
    const Answer info = say(kIrqInfo, irq_info_body(index));
    ASSERT_EQ(info.error, 0) << index;
    EXPECT_EQ(value_at<std::uint32_t>(info.body, 12), index == VFIO_PCI_MSI_IRQ_INDEX ? 1U : 0U) << index;
  }
  EXPECT_EQ(say(kIrqInfo, irq_info_body(5)).error, EINVAL);
}

TEST_F(VfioUserTest, InterruptReachesTheEventThatWasSentUntilItIsTakenBack) {
  const UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const auto count = [&event] {
    std::uint64_t value = 0;
    return ::read(event.get(), &value, sizeof value) == sizeof value ? value : 0;
  };
  card_.msi.raise();  // nobody is told
  constexpr std::uint32_t kEvent = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
  constexpr std::uint32_t kNone = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER;
  ASSERT_EQ(say(kSetIrqs, set_irqs_body(kEvent, 1, 0, 1), UniqueFd(::dup(event.get()))).error, 0);
  EXPECT_EQ(count(), 0U);
  card_.msi.raise();
  card_.msi.raise();
  EXPECT_EQ(count(), 2U);
  ASSERT_EQ(say(kSetIrqs, set_irqs_body(kNone, 1, 0, 1)).error, 0) << "fires it";
  EXPECT_EQ(count(), 1U);
  ASSERT_EQ(say(kSetIrqs, set_irqs_body(kNone, 1, 0, 0)).error, 0) << "disables it";
  card_.msi.raise();
  EXPECT_EQ(count(), 0U);
  ASSERT_EQ(say(kSetIrqs, set_irqs_body(kEvent, 1, 0, 1), UniqueFd(::dup(event.get()))).error, 0);
  ASSERT_EQ(say(kSetIrqs, set_irqs_body(kEvent, 1, 0, 1)).error, 0)
      << "without a descriptor it is taken back";
  EXPECT_FALSE(card_.msi.armed());
}

TEST_F(VfioUserTest, InterruptsThatAreNotThereAreRefused) {
  constexpr std::uint32_t kEvent = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
  const auto refused = [this](const Bytes& body) {
    return say(kSetIrqs, body, UniqueFd(::eventfd(0, EFD_CLOEXEC))).error == EINVAL && !card_.msi.armed();
  };
  EXPECT_TRUE(refused(set_irqs_body(kEvent, 1, 0, 2)));
  EXPECT_TRUE(refused(set_irqs_body(kEvent, 1, 1, 1)));
  EXPECT_TRUE(refused(set_irqs_body(kEvent, 1, ~0U, 1)));
  EXPECT_TRUE(refused(set_irqs_body(kEvent, 1, 1, ~0U)));
  EXPECT_TRUE(refused(set_irqs_body(kEvent, 0, 0, 1))) << "INTx";
  EXPECT_TRUE(refused(set_irqs_body(kEvent, 5, 0, 0)));
  EXPECT_TRUE(refused(set_irqs_body(VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_MASK, 1, 0, 1)));
  EXPECT_TRUE(refused(set_irqs_body(VFIO_IRQ_SET_DATA_BOOL | VFIO_IRQ_SET_ACTION_TRIGGER, 1, 0, 1)));
  EXPECT_TRUE(refused(set_irqs_body(kEvent | 0x80, 1, 0, 1)));
  EXPECT_EQ(say(kSetIrqs, set_irqs_body(VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER, 0, 0, 0)).error,
            0)
      << "QEMU disables INTx, which is not there";
}

TEST_F(VfioUserTest, GuestMemoryIsReachedThroughTheFileOfItsMap) {
  UniqueFd file = memory_file(0x4000);
  const std::uint32_t word = 0x12345678;
  ASSERT_EQ(::pwrite(file.get(), &word, sizeof word, 0x2010), 4);
  ASSERT_EQ(say(kDmaMap, dma_map_body(0x100000, 0x2000, 0x2000), UniqueFd(::dup(file.get()))).error, 0);
  const std::span<std::byte> bytes = card_.maps.at(0x100010, 4);
  ASSERT_EQ(bytes.size(), 4U);
  EXPECT_EQ(std::memcmp(bytes.data(), &word, 4), 0);
  bytes[0] = std::byte{0xff};
  std::uint32_t now = 0;
  ASSERT_EQ(::pread(file.get(), &now, sizeof now, 0x2010), 4);
  EXPECT_EQ(now, 0x123456ffU);

  const Answer gone = say(kDmaUnmap, dma_unmap_body(0x100000, 0x2000));
  ASSERT_EQ(gone.error, 0);
  EXPECT_EQ(value_at<std::uint64_t>(gone.body, 16), 0x2000U);
  EXPECT_TRUE(card_.maps.at(0x100010, 4).empty());
}

TEST_F(VfioUserTest, UnmapOfAllTakesEverything) {
  ASSERT_EQ(say(kDmaMap, dma_map_body(0x1000, 0x1000), memory_file(0x1000)).error, 0);
  ASSERT_EQ(say(kDmaMap, dma_map_body(0x9000, 0x1000)).error, 0);
  EXPECT_EQ(say(kDmaUnmap, dma_unmap_body(0x1000, 0x1000, VFIO_DMA_UNMAP_FLAG_ALL)).error, EINVAL);
  EXPECT_EQ(say(kDmaUnmap, dma_unmap_body(0, 0, 1)).error, EINVAL) << "dirty pages are not kept";
  EXPECT_EQ(card_.maps.count(), 2U);
  EXPECT_EQ(say(kDmaUnmap, dma_unmap_body(0, 0, VFIO_DMA_UNMAP_FLAG_ALL)).error, 0);
  EXPECT_EQ(card_.maps.count(), 0U);
}

TEST_F(VfioUserTest, MapsThatCannotBeAreRefused) {
  const auto error_of = [this](const Bytes& body, std::size_t files = 1) {
    std::vector<UniqueFd> fds;
    for (std::size_t i = 0; i < files; ++i) fds.push_back(memory_file(0x2000));
    return say(kDmaMap, body, std::move(fds)).error;
  };
  EXPECT_EQ(error_of(dma_map_body(0x1000, 0x1000, 0, 0)), EINVAL) << "neither read nor written";
  EXPECT_EQ(error_of(dma_map_body(0x1000, 0x1000, 0, 7)), EINVAL);
  EXPECT_EQ(error_of(dma_map_body(0x1000, 0x3000)), EINVAL) << "longer than its file";
  EXPECT_EQ(error_of(dma_map_body(0x1000, 0x1000, 0x2000)), EINVAL);
  EXPECT_EQ(error_of(dma_map_body(0x1000, 0x1000, ~std::uint64_t{0xfff})), EINVAL);
  EXPECT_EQ(error_of(dma_map_body(0x1000, 0x1000, 0x800)), EINVAL);
  EXPECT_EQ(error_of(dma_map_body(0x1000, 0x1000), 2), EINVAL);
  Bytes small = dma_map_body(0x1000, 0x1000);
  small[0] = std::byte{31};
  EXPECT_EQ(error_of(small), EINVAL);
  EXPECT_EQ(say(kDmaUnmap, dma_unmap_body(0x1000, 0x1000), memory_file(0x1000)).error, EINVAL);
  EXPECT_EQ(card_.maps.count(), 0U);
}

TEST_F(VfioUserTest, DescriptorsAreClosedWhateverBecomesOfTheMessage) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd reader(ends[0]);
  (void)say(kDeviceInfo, Packed().u32(16).u32(0).u32(0).u32(0), UniqueFd(ends[1]));
  char byte = 0;
  EXPECT_EQ(::read(reader.get(), &byte, 1), 0) << "somebody still has the other end";
}

TEST_F(VfioUserTest, RegisterAccessesReachTheDeviceAsTheyAre) {
  EXPECT_EQ(say(kRegionWrite, write_body<std::uint32_t>(0x14c, 5, 0x200)).error, 0);
  EXPECT_EQ(say(kRegionWrite, write_body<std::uint64_t>(0x1000, 2, 7)).error, 0);
  const Answer got = say(kRegionRead, access_body(0x7fffc, 5, 4));
  ASSERT_EQ(got.error, 0);
  EXPECT_EQ(got.body.size(), 20U);
  EXPECT_EQ(value_at<std::uint32_t>(got.body, 16), 0xfffefdfcU);
  const std::vector<RecordingDevice::Access> expected = {
      {Bar::kRegisters, 0x14c, Packed().u32(0x200)},
      {Bar::kDoorbells, 0x1000, Packed().u64(7)},
      {Bar::kRegisters, 0x7fffc, {}},
  };
  EXPECT_EQ(card_.device.accesses, expected);
}

TEST_F(VfioUserTest, VramConfigAndRomAreRead) {
  EXPECT_EQ(say(kRegionWrite, write_body<std::uint32_t>(0x100, 0, 0xabcd1234)).error, 0);
  EXPECT_EQ(value_at<std::uint32_t>(say(kRegionRead, access_body(0x100, 0, 4)).body, 16), 0xabcd1234U);
  EXPECT_EQ(value_at<std::uint32_t>(say(kRegionRead, access_body(0, 7, 4)).body, 16), 0x740f1002U);
  EXPECT_EQ(value_at<std::uint16_t>(say(kRegionRead, access_body(8190, 6, 2)).body, 16), 0x5555U);
  EXPECT_EQ(say(kRegionWrite, write_body<std::uint32_t>(0, 6, 0)).error, EINVAL) << "a ROM";
  EXPECT_TRUE(card_.device.accesses.empty());
}

TEST_F(VfioUserTest, AccessesThatAreNotInsideTheirRegionAreRefused) {
  const struct {
    std::uint32_t region;
    std::uint64_t bytes;
  } regions[] = {{0, kTestVram}, {2, 2 << 20}, {5, 512 << 10}, {6, 8192}, {7, 4096}, {1, 0}, {8, 0}, {9, 0}};
  for (const auto& region : regions) {
    const auto read = [&](std::uint64_t offset, std::uint32_t count) {
      return say(kRegionRead, access_body(offset, region.region, count)).error;
    };
    EXPECT_EQ(read(region.bytes, 1), EINVAL) << region.region;
    EXPECT_EQ(read(region.bytes - 1, 2), EINVAL) << region.region;
    EXPECT_EQ(read(~std::uint64_t{0}, 1), EINVAL) << region.region;
    EXPECT_EQ(read(~std::uint64_t{0} - 3, 8), EINVAL) << region.region;
    EXPECT_EQ(read(0, 0), EINVAL) << region.region;
    EXPECT_EQ(read(0, ~0U), EINVAL) << region.region;
    EXPECT_EQ(say(kRegionWrite, write_body<std::uint32_t>(region.bytes, region.region, 0)).error, EINVAL);
    EXPECT_EQ(say(kRegionWrite, write_body<std::uint32_t>(region.bytes - 2, region.region, 0)).error, EINVAL);
  }
  EXPECT_EQ(say(kRegionRead, access_body(0, 0, kMostData)).error, 0);
  EXPECT_EQ(say(kRegionRead, access_body(0, 0, kMostData + 1)).error, EINVAL);
  EXPECT_TRUE(card_.device.accesses.empty());
}

TEST_F(VfioUserTest, WriteMustHaveAllOfItsDataAndNoMore) {
  const auto body = [](std::uint32_t count) -> Bytes { return Packed().u64(0).u32(5).u32(count).u32(1); };
  EXPECT_EQ(say(kRegionWrite, body(3)).error, EINVAL);
  EXPECT_EQ(say(kRegionWrite, body(5)).error, EINVAL);
  EXPECT_TRUE(card_.device.accesses.empty());
  EXPECT_EQ(say(kRegionWrite, body(4)).error, 0);
  EXPECT_EQ(card_.device.accesses.size(), 1U);
}

TEST_F(VfioUserTest, PostedWriteIsDoneAndNotAnswered) {
  VfioUserRequest request{
      {1, kRegionWrite, 0, VfioUserHeader::kNoReply, 0}, write_body<std::uint32_t>(8, 5, 1), {}};
  EXPECT_FALSE(card_.session.answer(std::move(request)).has_value());
  EXPECT_EQ(card_.device.accesses.size(), 1U);
}

TEST_F(VfioUserTest, ResetReachesTheDeviceAndPutsTheConfigBack) {
  ASSERT_EQ(say(kRegionWrite, write_body<std::uint16_t>(4, 7, 6)).error, 0);
  ASSERT_EQ(value_at<std::uint16_t>(say(kRegionRead, access_body(4, 7, 2)).body, 16), 6);
  ASSERT_EQ(say(kReset, {}).error, 0);
  EXPECT_EQ(card_.device.resets, 1);
  EXPECT_EQ(value_at<std::uint16_t>(say(kRegionRead, access_body(4, 7, 2)).body, 16), 0);
}

TEST_F(VfioUserTest, MessagesThatAreCutOffAreRefused) {
  const struct {
    std::uint16_t command;
    Bytes whole;
  } all[] = {
      {kDmaMap, dma_map_body(0x1000, 0x1000)},
      {kDmaUnmap, dma_unmap_body(0x1000, 0x1000)},
      {kDeviceInfo, Packed().u32(16).u32(0).u32(0).u32(0)},
      {kRegionInfo, region_info_body(0)},
      {kIrqInfo, irq_info_body(1)},
      {kSetIrqs, set_irqs_body(VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER, 1, 0, 0)},
      {kRegionRead, access_body(0, 5, 4)},
      {kRegionWrite, write_body<std::uint32_t>(0, 5, 0)},
  };
  for (const auto& each : all) {
    for (std::size_t bytes = 0; bytes < each.whole.size(); ++bytes) {
      const Bytes part(each.whole.begin(), each.whole.begin() + static_cast<std::ptrdiff_t>(bytes));
      EXPECT_EQ(say(each.command, part).error, EINVAL) << each.command << " of " << bytes << " bytes";
    }
    EXPECT_EQ(say(each.command, each.whole).error, 0) << each.command;
  }
}

TEST_F(VfioUserTest, OtherMessagesAreNotSupported) {
  for (const int command : {0, 6, 11, 12, 14, 15, 0xffff}) {
    EXPECT_EQ(say(static_cast<std::uint16_t>(command), Bytes(64)).error, EOPNOTSUPP) << command;
  }
}

}  // namespace
}  // namespace sluice::card::tests
