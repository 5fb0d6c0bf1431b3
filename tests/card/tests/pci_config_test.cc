// SPDX-License-Identifier: MIT
// The configuration space as a kernel walks it.
#include "bus/pci_config.h"

#include <gtest/gtest.h>
#include <linux/pci_regs.h>

#include <map>

#include "bus_kit.h"

namespace sluice::card::tests {
namespace {

class PciConfigTest : public testing::Test {
 protected:
  template <class T>
  T get(std::size_t offset) const {
    Bytes bytes(sizeof(T));
    config_.read(offset, bytes);
    return value_at<T>(bytes, 0);
  }
  template <class T>
  void set(std::size_t offset, T value) {
    config_.write(offset, Bytes(Packed().add(value)));
  }
  // By the usual way: all ones are written, and what stays is the mask.
  std::uint64_t bar_bytes(std::size_t offset, bool wide) {
    set<std::uint32_t>(offset, ~0U);
    std::uint64_t mask = get<std::uint32_t>(offset) & ~0xfU;
    if (wide) {
      set<std::uint32_t>(offset + 4, ~0U);
      mask |= static_cast<std::uint64_t>(get<std::uint32_t>(offset + 4)) << 32;
    } else {
      mask |= ~std::uint64_t{0xffffffff};
    }
    return (mask & 0xffffffff) == 0 && !wide ? 0 : ~mask + 1;
  }

  PciConfig config_{mi210(), 512 << 20, 8192};
};

TEST_F(PciConfigTest, ItIsAnMi210) {
  EXPECT_EQ(get<std::uint32_t>(PCI_VENDOR_ID), 0x740f1002U);
  EXPECT_EQ(get<std::uint8_t>(PCI_REVISION_ID), 2);
  EXPECT_EQ(get<std::uint32_t>(PCI_CLASS_REVISION) >> 8, 0x038000U);
  EXPECT_EQ(get<std::uint8_t>(PCI_HEADER_TYPE), 0);
}

TEST_F(PciConfigTest, BarsHaveTheirSizesAndKinds) {
  EXPECT_EQ(get<std::uint32_t>(PCI_BASE_ADDRESS_0), 0xcU);
  EXPECT_EQ(get<std::uint32_t>(PCI_BASE_ADDRESS_2), 0xcU);
  EXPECT_EQ(get<std::uint32_t>(PCI_BASE_ADDRESS_5), 0U);
  EXPECT_EQ(bar_bytes(PCI_BASE_ADDRESS_0, true), 512U << 20);
  EXPECT_EQ(bar_bytes(PCI_BASE_ADDRESS_2, true), 2U << 20);
  EXPECT_EQ(bar_bytes(PCI_BASE_ADDRESS_4, false), 0U) << "no BAR";
  EXPECT_EQ(bar_bytes(PCI_BASE_ADDRESS_5, false), 512U << 10);
  set<std::uint32_t>(PCI_ROM_ADDRESS, 0xfffff800);
  EXPECT_EQ(get<std::uint32_t>(PCI_ROM_ADDRESS), 0xffffe000U);

  set<std::uint64_t>(PCI_BASE_ADDRESS_0, 0x2000000000);
  set<std::uint32_t>(PCI_BASE_ADDRESS_5, 0xfe100000);
  EXPECT_EQ(config_.address(Bar::kVram), 0x2000000000U);
  EXPECT_EQ(config_.address(Bar::kRegisters), 0xfe100000U);
  config_.reset();
  EXPECT_EQ(config_.address(Bar::kVram), 0U);
  EXPECT_EQ(get<std::uint32_t>(PCI_BASE_ADDRESS_0), 0xcU);
}

TEST_F(PciConfigTest, VramOfMoreThanFourGigabytesHasItsSizeInTheUpperHalf) {
  config_ = PciConfig(mi210(), std::uint64_t{64} << 30, 0);
  EXPECT_EQ(bar_bytes(PCI_BASE_ADDRESS_0, true), std::uint64_t{64} << 30);
  set<std::uint32_t>(PCI_ROM_ADDRESS, ~0U);
  EXPECT_EQ(get<std::uint32_t>(PCI_ROM_ADDRESS), 0U) << "no ROM";
}

TEST_F(PciConfigTest, CapabilitiesAreOneMsiAndAnExpressEndpoint) {
  EXPECT_NE(get<std::uint16_t>(PCI_STATUS) & PCI_STATUS_CAP_LIST, 0);
  std::map<unsigned, std::size_t> found;
  for (std::size_t at = get<std::uint8_t>(PCI_CAPABILITY_LIST); at != 0;
       at = get<std::uint8_t>(at + PCI_CAP_LIST_NEXT)) {
    ASSERT_TRUE(found.emplace(get<std::uint8_t>(at), at).second) << "one twice, or a circle";
  }
  ASSERT_EQ(found.size(), 2U);
  ASSERT_TRUE(found.count(PCI_CAP_ID_MSI) == 1 && found.count(PCI_CAP_ID_EXP) == 1);
  const auto msi = get<std::uint16_t>(found[PCI_CAP_ID_MSI] + PCI_MSI_FLAGS);
  EXPECT_EQ(msi & PCI_MSI_FLAGS_QMASK, 0) << "one vector";
  EXPECT_NE(msi & PCI_MSI_FLAGS_64BIT, 0);
  const auto express = get<std::uint16_t>(found[PCI_CAP_ID_EXP] + PCI_EXP_FLAGS);
  EXPECT_EQ(express & PCI_EXP_FLAGS_VERS, 2);
  EXPECT_EQ((express & PCI_EXP_FLAGS_TYPE) >> 4, PCI_EXP_TYPE_ENDPOINT);
}

TEST_F(PciConfigTest, WhatIsNotTheGuestsToWriteStays) {
  Bytes before(kConfigBytes);
  config_.read(0, before);
  config_.write(0, Bytes(kConfigBytes, std::byte{0xff}));
  EXPECT_EQ(get<std::uint32_t>(PCI_VENDOR_ID), 0x740f1002U);
  EXPECT_EQ(get<std::uint16_t>(PCI_STATUS), PCI_STATUS_CAP_LIST);
  EXPECT_EQ(get<std::uint8_t>(PCI_CAPABILITY_LIST), static_cast<std::uint8_t>(before[PCI_CAPABILITY_LIST]));
  Bytes after(kConfigBytes);
  config_.read(0, after);
  EXPECT_TRUE(std::equal(after.begin() + 256, after.end(), before.begin() + 256))
      << "beyond the capabilities";
  config_.write(0, Bytes(kConfigBytes));
  config_.read(0, after);
  EXPECT_EQ(after, before) << "all that can be written is zero at first";
}

}  // namespace
}  // namespace sluice::card::tests
