// SPDX-License-Identifier: MIT
// Addresses: apertures of vmid 0, the GART, and four levels of tables.
#include <gtest/gtest.h>

#include "gpu_kit.h"

namespace sluice::card::tests {
namespace {

class MemoryTest : public ::testing::Test {
 protected:
  AddressSpace driver(Hub hub = Hub::kGc) { return kit.gpu.space(hub, 0); }
  AddressSpace process(std::uint64_t root) {
    return AddressSpace::of_process(kit.gpu.memory(), Hub::kGc, 8, 0x8001, root);
  }
  void map_gart(std::uint64_t page, std::uint64_t pte) { kit.put_vram(kGartTable + page * 8, pte); }

  GpuKit kit;
};

// ---- vmid 0 ----

TEST_F(MemoryTest, TheFrameBufferIsVram) {
  ASSERT_TRUE(driver().store64(kFbBase + 0x1238, 0x1122334455667788));
  EXPECT_EQ(kit.vram_value<std::uint64_t>(0x1238), 0x1122334455667788);
}

TEST_F(MemoryTest, NothingIsBehindTheFrameBuffer) {
  EXPECT_TRUE(driver().load64(kFbBase + kVramBytes - 8));
  const auto beyond = driver().load64(kFbBase + kVramBytes);
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().why, Fault::Why::kNoAperture);
}

TEST_F(MemoryTest, AFrameBufferRegisterThatIsTooLargeDoesNotReachBeyondVram) {
  kit.gpu.write_register(mi210_places::kHubs[0] + mi210_places::kApertures + reg::aperture::kFbLocationTop,
                         0xffffff);
  const auto beyond = driver().load64(kFbBase + kVramBytes);
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().why, Fault::Why::kOutOfVram);
}

TEST_F(MemoryTest, GartPagesAreGuestMemory) {
  map_gart(3, (kGuestBase + 0x5000) | kAll | entry::kSystem);
  ASSERT_TRUE(driver().store32(0x3010, 0xabcd));
  EXPECT_EQ(value_in<std::uint32_t>(kit.guest.bytes(), 0x5010), 0xabcdU);
}

TEST_F(MemoryTest, AGartPageThatIsNotMappedIsAFault) {
  const auto fault = driver().load32(0x4000);
  ASSERT_FALSE(fault);
  EXPECT_EQ(fault.error().why, Fault::Why::kNotValid);
  EXPECT_EQ(fault.error().address, 0x4000U);
  EXPECT_EQ(fault.error().level, 0U);
}

TEST_F(MemoryTest, AGartPageAtNoMemoryIsAFault) {
  map_gart(1, 0x7000'0000 | kAll | entry::kSystem);
  const auto fault = driver().load32(0x1000);
  ASSERT_FALSE(fault);
  EXPECT_EQ(fault.error().why, Fault::Why::kNoBusAddress);
}

TEST_F(MemoryTest, AGartPageForReadingIsNotWritten) {
  map_gart(1, kGuestBase | entry::kValid | entry::kRead | entry::kSystem);
  EXPECT_TRUE(driver().load32(0x1000));
  const auto fault = driver().store32(0x1000, 1);
  ASSERT_FALSE(fault);
  EXPECT_EQ(fault.error().why, Fault::Why::kNotAllowed);
  EXPECT_EQ(fault.error().access, Access::kWrite);
}

TEST_F(MemoryTest, TheGartEndsWhereItsRegistersSay) {
  const auto fault = driver().load32(512 * kPageBytes);
  ASSERT_FALSE(fault);
  EXPECT_EQ(fault.error().why, Fault::Why::kNoAperture);
}

TEST_F(MemoryTest, WithoutItsContextThereIsNoGart) {
  map_gart(1, kGuestBase | kAll | entry::kSystem);
  kit.gpu.write_register(mi210_places::kHubs[0] + reg::hub::kContextCntl, 0);
  EXPECT_FALSE(driver().load32(0x1000));
  EXPECT_TRUE(driver(Hub::kMm).load32(0x1000));  // each hub has its own
}

TEST_F(MemoryTest, TheAgpApertureIsTheBus) {
  const std::uint32_t hub = mi210_places::kHubs[0];
  kit.gpu.write_register(hub + mi210_places::kApertures + reg::aperture::kAgpBot, 0x900000);
  kit.gpu.write_register(hub + mi210_places::kApertures + reg::aperture::kAgpTop, 0x9000ff);
  kit.gpu.write_register(hub + mi210_places::kApertures + reg::aperture::kAgpBase,
                         static_cast<std::uint32_t>(kGuestBase >> 24));
  ASSERT_TRUE(driver().store32(0x9000'0000'0000 + 0x2004, 0x1234));
  EXPECT_EQ(value_in<std::uint32_t>(kit.guest.bytes(), 0x2004), 0x1234U);
  const auto fault = driver().load32(0x9000'0000'0000 + kGuestBytes);
  ASSERT_FALSE(fault);
  EXPECT_EQ(fault.error().why, Fault::Why::kNoBusAddress);
}

// ---- tables ----

TEST_F(MemoryTest, PagesAreFoundByFourLevels) {
  TableKit tables(kit);
  constexpr std::uint64_t kVa = 0x7f12'3456'7000;
  tables.map_vram(kVa, kData, kPageBytes);
  ASSERT_TRUE(process(tables.root()).store32(kVa + 0x10, 77));
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kData + 0x10), 77U);
}

TEST_F(MemoryTest, BitsAboveTheAddressAreASignExtension) {
  TableKit tables(kit);
  tables.map_vram(0xffff'8000'0000'0000 & 0xffff'ffff'ffff, kData, kPageBytes);
  EXPECT_TRUE(process(tables.root()).load32(0xffff'8000'0000'0000));
}

TEST_F(MemoryTest, AFaultNamesTheLevelAndTheEntry) {
  constexpr std::uint64_t kVa = 0x7f12'3456'7000;
  for (unsigned level = 0; level < 4; ++level) {
    TableKit tables(kit, kTables + level * 0x10000);
    tables.map_vram(kVa, kData, kPageBytes);
    const std::uint64_t was = kit.vram_value<std::uint64_t>(tables.slot(kVa, level));
    tables.set(kVa, level, was & ~entry::kValid);
    const auto fault = process(tables.root()).load64(kVa + 8);
    ASSERT_FALSE(fault) << level;
    EXPECT_EQ(fault.error().why, Fault::Why::kNotValid);
    EXPECT_EQ(fault.error().level, level);
    EXPECT_EQ(fault.error().entry, was & ~entry::kValid);
    EXPECT_EQ(fault.error().address, kVa + 8);
    EXPECT_EQ(fault.error().vmid, 8U);
    EXPECT_EQ(fault.error().pasid, 0x8001U);
  }
}

TEST_F(MemoryTest, TheThirdLevelIsAPageUnlessItSaysFurther) {
  TableKit tables(kit);
  constexpr std::uint64_t kVa = 0x40000000;
  tables.set(kVa, 1, kData | kAll);  // 2 MiB
  const AddressSpace space = process(tables.root());
  ASSERT_TRUE(space.store32(kVa + 0x123454, 5));
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kData + 0x123454), 5U);
  const auto whole = space.at(kVa + 0x1000, 4 << 20, Access::kRead);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->size(), (2U << 20) - 0x1000);
}

TEST_F(MemoryTest, AboveItABitSaysThatAnEntryIsAPage) {
  TableKit tables(kit);
  constexpr std::uint64_t kVa = 0x40000000;
  tables.set(kVa, 2, kAll | entry::kIsPte);  // 1 GiB at the start of VRAM
  const AddressSpace space = process(tables.root());
  ASSERT_TRUE(space.store32(kVa + kData, 6));
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kData), 6U);
  const auto fault = space.load32(kVa + kVramBytes);
  ASSERT_FALSE(fault);
  EXPECT_EQ(fault.error().why, Fault::Why::kOutOfVram);
}

// What amdgpu_vm_pt.c writes for memory in one piece: how large a page is, the address in the vmid says, and
// where it begins, nobody aligns.
TEST_F(MemoryTest, ALargePageBeginsAtAnyPage) {
  constexpr std::uint64_t kVa = 0x40000000;
  constexpr std::uint64_t kFragment = std::uint64_t{9} << 7, kSnooped = 1 << 2, kExecutable = 1 << 4;
  for (const std::uint64_t pages : {1, 3, 224, 511}) {
    TableKit tables(kit);
    const std::uint64_t base = pages * kPageBytes;
    tables.set(kVa, 1, (kGuestBase + base) | kAll | kExecutable | kSnooped | entry::kSystem | kFragment);
    tables.set(kVa + (2 << 20), 1, (kData + base) | kAll | kExecutable | kFragment);
    const AddressSpace space = process(tables.root());
    for (const std::uint64_t offset :
         {std::uint64_t{0}, std::uint64_t{0x12344}, std::uint64_t{(2 << 20) - 4}}) {
      ASSERT_TRUE(space.store32(kVa + offset, 9)) << pages;
      EXPECT_EQ(value_in<std::uint32_t>(kit.guest.bytes(), base + offset), 9U) << pages;
      ASSERT_TRUE(space.store32(kVa + (2 << 20) + offset, 7)) << pages;
      EXPECT_EQ(kit.vram_value<std::uint32_t>(kData + base + offset), 7U) << pages;
      kit.put_vram<std::uint32_t>(kData + base + offset, 0);
      put_in<std::uint32_t>(kit.guest.bytes(), base + offset, 0);
    }
  }
}

TEST_F(MemoryTest, AHugePageBeginsAtAnyPage) {
  TableKit tables(kit);
  constexpr std::uint64_t kVa = 0x40000000;
  tables.set(kVa, 2, (kGuestBase + 0x5000) | kAll | entry::kSystem | entry::kIsPte);
  ASSERT_TRUE(process(tables.root()).store32(kVa + 0x201230, 8));
  EXPECT_EQ(value_in<std::uint32_t>(kit.guest.bytes(), 0x206230), 8U);
}

// AMDGPU_VM_PAGE_PRT, as gmc_v9_0_get_vm_pte writes it, of pages and of large ones.
TEST_F(MemoryTest, APartiallyResidentPageReadsAsZeroAndLosesWhatIsWritten) {
  constexpr std::uint64_t kVa = 0x40000000;
  for (unsigned level = 0; level < 3; ++level) {
    TableKit tables(kit, kTables + level * 0x10000);
    tables.set(kVa, level, entry::kPartial | entry::kRead | entry::kWrite);
    const AddressSpace space = process(tables.root());
    ASSERT_TRUE(space.store64(kVa + 0xff8, 9)) << level;
    const auto value = space.load64(kVa + 0xff8);
    ASSERT_TRUE(value) << level;
    EXPECT_EQ(*value, 0U);
  }
}

// AMDGPU_VM_NORETRY_FLAGS_TF: a page whose accesses are to fault at once.
TEST_F(MemoryTest, AValidPageWithoutRightsIsAFaultWhateverElseItSays) {
  TableKit tables(kit);
  tables.map(0x5000, entry::kValid | entry::kSystem | entry::kPartial);
  const auto fault = process(tables.root()).load32(0x5000);
  ASSERT_FALSE(fault);
  EXPECT_EQ(fault.error().why, Fault::Why::kNotAllowed);
}

TEST_F(MemoryTest, AccessesCrossPages) {
  TableKit tables(kit);
  constexpr std::uint64_t kVa = 0x50000000;
  tables.map(kVa, kData | kAll);
  tables.map(kVa + kPageBytes, (kGuestBase + 0x6000) | kAll | entry::kSystem);
  const AddressSpace space = process(tables.root());
  std::array<std::byte, 16> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i + 1);
  ASSERT_TRUE(space.write(kVa + kPageBytes - 8, bytes));
  EXPECT_EQ(kit.vram()[kData + kPageBytes - 1], std::byte{8});
  EXPECT_EQ(kit.guest.bytes()[0x6000], std::byte{9});
  std::array<std::byte, 16> again{};
  ASSERT_TRUE(space.read(kVa + kPageBytes - 8, again));
  EXPECT_EQ(again, bytes);
}

TEST_F(MemoryTest, WhatComesBeforeAFaultIsWritten) {
  TableKit tables(kit);
  constexpr std::uint64_t kVa = 0x50000000;
  tables.map(kVa, kData | kAll);
  std::array<std::byte, 16> bytes{};
  bytes.fill(std::byte{0xee});
  const auto fault = process(tables.root()).write(kVa + kPageBytes - 8, bytes);
  ASSERT_FALSE(fault);
  EXPECT_EQ(fault.error().address, kVa + kPageBytes);
  EXPECT_EQ(kit.vram()[kData + kPageBytes - 1], std::byte{0xee});
}

TEST_F(MemoryTest, ATableBehindVramIsAFault) {
  const auto fault = process(kVramBytes | entry::kValid).load32(0x1000);
  ASSERT_FALSE(fault);
  EXPECT_EQ(fault.error().why, Fault::Why::kOutOfVram);
  EXPECT_EQ(fault.error().level, 3U);
}

TEST_F(MemoryTest, TablesMayBeInGuestMemory) {
  put_in<std::uint64_t>(kit.guest.bytes(), 0x8000, (kGuestBase + 0x9000) | entry::kValid | entry::kSystem);
  put_in<std::uint64_t>(kit.guest.bytes(), 0x9000, kAll | entry::kIsPte);
  ASSERT_TRUE(process((kGuestBase + 0x8000) | entry::kValid | entry::kSystem).store32(0x18, 3));
  EXPECT_EQ(kit.vram_value<std::uint32_t>(0x18), 3U);
}

TEST_F(MemoryTest, AVmidGoesByItsRegisters) {
  TableKit tables(kit);
  tables.map_vram(0x1000, kData, kPageBytes);
  const std::uint32_t hub = mi210_places::kHubs[1];
  kit.gpu.write_register(hub + reg::hub::kContextBaseLo + 8 * 2, static_cast<std::uint32_t>(tables.root()));
  EXPECT_TRUE(kit.gpu.space(Hub::kMm, 2).load32(0x1000));
  kit.gpu.write_register(hub + reg::hub::kContextCntl + 4 * 2, 0);
  const auto fault = kit.gpu.space(Hub::kMm, 2).load32(0x1000);
  ASSERT_FALSE(fault);
  EXPECT_EQ(fault.error().why, Fault::Why::kNoTable);
}

TEST_F(MemoryTest, AdditionsGiveWhatWasThere) {
  kit.put_vram<std::uint64_t>(kData, 40);
  const auto before = driver().add64(kFbBase + kData, 2);
  ASSERT_TRUE(before);
  EXPECT_EQ(*before, 40U);
  EXPECT_EQ(kit.vram_value<std::uint64_t>(kData), 42U);
}

// ---- faults in the registers ----

TEST_F(MemoryTest, AFaultIsKeptAndTold) {
  Fault fault;
  fault.hub = Hub::kGc;
  fault.access = Access::kWrite;
  fault.vmid = 9;
  fault.pasid = 0x8002;
  fault.address = 0xf123'4567'8000;
  kit.gpu.report(fault);
  const std::uint32_t hub = mi210_places::kHubs[0];
  const std::uint32_t status = kit.gpu.read_register(hub + reg::hub::kFaultStatus);
  EXPECT_EQ(status >> 20 & 0xf, 9U);   // VMID
  EXPECT_EQ(status >> 18 & 1, 1U);     // RW
  EXPECT_EQ(status >> 9 & 0x1ff, 5U);  // CPC
  EXPECT_EQ(status >> 4 & 0xf, 0x5U);  // not valid, no writing
  EXPECT_EQ(status & 1, 0U);           // MORE_FAULTS
  EXPECT_EQ(kit.gpu.read_register(hub + reg::hub::kFaultAddrLo), 0x12345678U);
  EXPECT_EQ(kit.gpu.read_register(hub + reg::hub::kFaultAddrHi), 0xfU);
  const auto told = kit.interrupts();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(client_of(told[0]), 0x1bU);
  EXPECT_EQ(source_of(told[0]), 0U);
  EXPECT_EQ(vmid_of(told[0]), 9U);
  EXPECT_EQ(pasid_of(told[0]), 0x8002U);
  EXPECT_EQ(told[0][4], 0x12345678U);
  EXPECT_EQ(told[0][5], 0xfU | 0x20U);  // address bits 44 to 47, write; no retry
}

TEST_F(MemoryTest, TheFirstFaultStaysUntilItIsCleared) {
  Fault first;
  first.hub = Hub::kMm;
  first.address = 0x1000;
  first.vmid = 3;
  Fault second = first;
  second.address = 0x2000;
  kit.gpu.report(first);
  kit.gpu.report(second);
  const std::uint32_t hub = mi210_places::kHubs[1];
  EXPECT_EQ(kit.gpu.read_register(hub + reg::hub::kFaultAddrLo), 1U);
  EXPECT_EQ(kit.gpu.read_register(hub + reg::hub::kFaultStatus) & 1, 1U);
  EXPECT_EQ(kit.interrupts().size(), 2U);
  kit.gpu.write_register(hub + reg::hub::kFaultCntl, 1);
  EXPECT_EQ(kit.gpu.read_register(hub + reg::hub::kFaultStatus), 0U);
  EXPECT_EQ(kit.gpu.read_register(hub + reg::hub::kFaultCntl), 0U);
  kit.gpu.report(second);
  EXPECT_EQ(kit.gpu.read_register(hub + reg::hub::kFaultAddrLo), 2U);
}

TEST_F(MemoryTest, AContextThatHasTheInterruptOffIsNotTold) {
  kit.gpu.write_register(mi210_places::kHubs[0] + reg::hub::kContextCntl + 4 * 9, 1);
  Fault fault;
  fault.vmid = 9;
  kit.gpu.report(fault);
  EXPECT_NE(kit.gpu.read_register(mi210_places::kHubs[0] + reg::hub::kFaultStatus), 0U);
  EXPECT_TRUE(kit.interrupts().empty());
}

}  // namespace
}  // namespace sluice::card::tests
