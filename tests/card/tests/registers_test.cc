// SPDX-License-Identifier: MIT
// The register table, and the blocks that have nothing but registers.
#include <gtest/gtest.h>

#include <set>

#include "gpu_kit.h"

namespace sluice::card::tests {
namespace {

class RegistersTest : public ::testing::Test {
 protected:
  std::uint32_t read(std::uint32_t byte) { return kit.gpu.read_register(byte); }
  void write(std::uint32_t byte, std::uint32_t value) { kit.gpu.write_register(byte, value); }

  GpuKit kit;
};

TEST_F(RegistersTest, RowsDoNotOverlap) {
  std::set<std::uint32_t> seen;
  for (const RegisterRow& row : mi210().registers.rows()) {
    for (std::uint32_t i = 0; i < row.count; ++i) {
      EXPECT_TRUE(seen.insert(row.byte + i * row.stride).second) << row.name;
      EXPECT_EQ((row.byte + i * row.stride) % 4, 0U) << row.name;
    }
  }
}

TEST_F(RegistersTest, NamesHaveTheirIndex) {
  EXPECT_EQ(mi210().registers.name(mi210_places::kHubs[0] + reg::hub::kContextCntl + 4 * 7),
            "GC.VM_CONTEXT7_CNTL");
  EXPECT_EQ(mi210().registers.name(mi210_places::kSdma[4] + reg::sdma::kRbCntl), "SDMA4_GFX_RB_CNTL");
  EXPECT_EQ(mi210().registers.name(0x7fffc), "?");
}

TEST_F(RegistersTest, TheCardIsPostedAndNoVirtualFunction) {
  EXPECT_EQ(read(reg::kConfigMemsize), kVramBytes >> 20);
  EXPECT_EQ(read(reg::kIovFuncIdentifier), 0x80000000U);
  EXPECT_EQ(read(reg::kBiosScratch7) & 0x200, 0x200U);
}

// Linux 7.2 waits for it, 2000 times a tick or two (amdgpu_discovery.c).
TEST_F(RegistersTest, ItsFirmwareIsUp) {
  EXPECT_EQ(read(0x16061 * 4) >> 31, 1U);
}

TEST_F(RegistersTest, FixedRegistersStay) {
  write(reg::kIovFuncIdentifier, 1);
  EXPECT_EQ(read(reg::kIovFuncIdentifier), 0x80000000U);
}

TEST_F(RegistersTest, UnknownRegistersLatchAndAreCounted) {
  const std::uint64_t before = kit.gpu.counters().unknown_registers;
  write(0x7fffc, 0x1234);
  EXPECT_EQ(read(0x7fffc), 0x1234U);
  EXPECT_EQ(kit.gpu.counters().unknown_registers, before + 2);
  EXPECT_EQ(kit.gpu.unknown_registers().at(0x7fffc), 2U);
}

TEST_F(RegistersTest, IndexAndDataReachRegistersBeyondTheBar) {
  write(reg::kPcieIndex2, 0x123450);
  write(reg::kPcieData2, 99);
  write(reg::kPcieIndex2, reg::kScratchReg0);
  write(reg::kPcieData2, 77);
  EXPECT_EQ(read(reg::kScratchReg0), 77U);
  write(reg::kPcieIndex2, 0x123450);
  EXPECT_EQ(read(reg::kPcieData2), 99U);
}

TEST_F(RegistersTest, AGuestThatWritesEverywhereFillsNoMemory) {
  constexpr std::uint32_t kBeyond = 0x1000000;
  for (std::uint32_t i = 0; i < Registers::kMostLatched + 100; ++i) {
    write(reg::kPcieIndex2, kBeyond + 4 * i);
    write(reg::kPcieData2, i + 1);
  }
  EXPECT_EQ(read(reg::kPcieData2), 0U);
  EXPECT_EQ(kit.gpu.unknown_registers().size(), Registers::kMostLatched);
  write(reg::kScratchReg0, 0x77);  // one that the driver has
  EXPECT_EQ(read(reg::kScratchReg0), 0x77U);
}

TEST_F(RegistersTest, APairOfRegistersReachesVram) {
  kit.put_vram<std::uint32_t>(kData + 8, 0x5151);
  write(reg::kMmIndexHi, 0);
  write(reg::kMmIndex, static_cast<std::uint32_t>(1U << 31 | (kData + 8)));
  EXPECT_EQ(read(reg::kMmData), 0x5151U);
  write(reg::kMmData, 0x6262);
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kData + 8), 0x6262U);
  write(reg::kMmIndexHi, 0xffffffff);  // beyond its end
  EXPECT_EQ(read(reg::kMmData), 0U);
  write(reg::kMmIndex, kVramBytes | 1U << 31);
  write(reg::kMmIndexHi, 0);
  write(reg::kMmData, 1);
  EXPECT_EQ(read(reg::kMmData), 0U);
}

TEST_F(RegistersTest, AnyPieceOfABarCanBeRead) {
  write(reg::kScratchReg0, 0x44332211);
  write(reg::kScratchReg0 + 4, 0x88776655);
  std::array<std::byte, 5> bytes{};
  kit.gpu.read(Bar::kRegisters, reg::kScratchReg0 + 2, bytes);
  EXPECT_EQ(bytes[0], std::byte{0x33});
  EXPECT_EQ(bytes[4], std::byte{0x77});
}

TEST_F(RegistersTest, PiecesOfRegistersAreNotWritten) {
  write(reg::kScratchReg0, 0x44332211);
  const std::array<std::byte, 2> bytes{};
  kit.gpu.write(Bar::kRegisters, reg::kScratchReg0, bytes);
  kit.gpu.write(Bar::kRegisters, reg::kScratchReg0 + 2, bytes);
  EXPECT_EQ(read(reg::kScratchReg0), 0x44332211U);
}

TEST_F(RegistersTest, AnInvalidationIsAcknowledgedForItsVmids) {
  const std::uint32_t hub = mi210_places::kHubs[1];
  EXPECT_EQ(read(hub + reg::hub::kInvalidateAck + 4 * 17), 0U);
  write(hub + reg::hub::kInvalidateReq + 4 * 17, 1 << 5 | 0xf80000);
  EXPECT_EQ(read(hub + reg::hub::kInvalidateAck + 4 * 17), 1U << 5);
}

TEST_F(RegistersTest, ASemaphoreIsTakenByOneReader) {
  const std::uint32_t semaphore = mi210_places::kHubs[1] + reg::hub::kInvalidateSem;
  EXPECT_EQ(read(semaphore), 1U);
  EXPECT_EQ(read(semaphore), 0U);
  write(semaphore, 0);
  EXPECT_EQ(read(semaphore), 1U);
}

TEST_F(RegistersTest, SafeModeIsEnteredAtOnce) {
  write(reg::kRlcSafeMode, 3);
  EXPECT_EQ(read(reg::kRlcSafeMode) & 1, 0U);
}

TEST_F(RegistersTest, TheClockIsCaptured) {
  write(reg::kRlcCaptureClock, 1);
  const std::uint32_t low = read(reg::kRlcClockLsb);
  EXPECT_EQ(read(reg::kRlcClockLsb), low);  // it stands until the next capture
  EXPECT_NE(low | read(reg::kRlcClockMsb), 0U);
}

TEST_F(RegistersTest, EachQueueSlotHasRegistersOfItsOwn) {
  constexpr std::uint32_t kPqBase = 0xc934;
  write(reg::kGrbmGfxCntl, 1 << 2 | 1);
  write(kPqBase, 0x1111);
  write(reg::kGrbmGfxCntl, 2 << 2 | 1 | 3 << 8);
  write(kPqBase, 0x2222);
  write(reg::kGrbmGfxCntl, 1 << 2 | 1 | 5 << 4);  // the vmid does not count
  EXPECT_EQ(read(kPqBase), 0x1111U);
}

TEST_F(RegistersTest, AResetForgets) {
  write(reg::kScratchReg0, 5);
  write(mi210_places::kHubs[0] + mi210_places::kApertures + reg::aperture::kFbLocationBase, 1);
  kit.gpu.reset();
  EXPECT_EQ(read(reg::kScratchReg0), 0U);
  EXPECT_EQ(read(mi210_places::kHubs[0] + mi210_places::kApertures + reg::aperture::kFbLocationBase),
            kFbBase >> 24);
  EXPECT_EQ(read(reg::kIhRbCntl), 0U);
  EXPECT_EQ(read(reg::kConfigMemsize), kVramBytes >> 20);
}

// ---- the interrupt ring ----

InterruptEntry an_entry(std::uint32_t data) {
  InterruptEntry entry;
  entry.client = 0x14;
  entry.source = 181;
  entry.ring_id = 0x15;
  entry.data[0] = data;
  return entry;
}

TEST_F(RegistersTest, AnEntryIsWrittenAsTheDriverReadsIt) {
  InterruptEntry entry = an_entry(7);
  entry.vmid = 8;
  entry.pasid = 0x8001;
  entry.data[3] = 9;
  kit.gpu.interrupt(entry);
  EXPECT_EQ(kit.interrupt.raised, 1U);
  EXPECT_EQ(read(reg::kIhRbWptr), 32U);
  const auto entries = kit.interrupts();
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0][0], 0x14U | 181U << 8 | 0x15U << 16 | 8U << 24);
  EXPECT_NE(entries[0][1] | entries[0][2], 0U);  // time
  EXPECT_EQ(entries[0][3], 0x8001U);
  EXPECT_EQ(entries[0][4], 7U);
  EXPECT_EQ(entries[0][7], 9U);
}

TEST_F(RegistersTest, TheInterruptRingWraps) {
  for (std::uint32_t i = 0; i < 100; ++i) {
    kit.gpu.interrupt(an_entry(i));
    const auto entries = kit.interrupts();
    ASSERT_EQ(entries.size(), 1U) << i;
    EXPECT_EQ(entries[0][4], i);
  }
  EXPECT_EQ(read(reg::kIhRbWptr), 100U % 32 * 32);
  EXPECT_EQ(kit.gpu.counters().lost_interrupts, 0U);
}

TEST_F(RegistersTest, AnOverflowLosesTheOldestAndSaysSo) {
  for (std::uint32_t i = 0; i < 40; ++i) kit.gpu.interrupt(an_entry(i));
  const std::uint32_t write = read(reg::kIhRbWptr);
  EXPECT_EQ(write & 1, 1U);  // RB_OVERFLOW
  EXPECT_EQ(value_in<std::uint32_t>(kit.guest.bytes(), 0x1000), write);
  // As vega20_ih_get_wptr() goes on: at the entry after the one that the write pointer is at.
  const std::uint32_t oldest = ((write & ~1U) + 32) % GpuKit::kIhRingBytes;
  EXPECT_EQ(value_in<std::uint32_t>(kit.guest.bytes(), oldest + 16), 40U - 31U);
  EXPECT_EQ(kit.gpu.counters().lost_interrupts, 9U);
}

TEST_F(RegistersTest, AnOverflowIsClearedByTheDriver) {
  for (std::uint32_t i = 0; i < 40; ++i) kit.gpu.interrupt(an_entry(i));
  write(reg::kIhRbCntl, GpuKit::kIhOn | 1U << 31);
  write(reg::kIhRbCntl, GpuKit::kIhOn);
  EXPECT_EQ(read(reg::kIhRbWptr) & 1, 0U);
  (void)kit.interrupts();
  kit.gpu.interrupt(an_entry(99));
  EXPECT_EQ(read(reg::kIhRbWptr) & 1, 0U);
}

TEST_F(RegistersTest, ARingThatIsOffLosesInterrupts) {
  write(reg::kIhRbCntl, 0);
  kit.gpu.interrupt(an_entry(1));
  EXPECT_EQ(kit.interrupt.raised, 0U);
  EXPECT_EQ(kit.gpu.counters().lost_interrupts, 1U);
}

TEST_F(RegistersTest, ARingAtNoMemoryLosesInterrupts) {
  write(reg::kIhRbBase, 0x700000);
  kit.gpu.interrupt(an_entry(1));
  EXPECT_EQ(kit.interrupt.raised, 0U);
  EXPECT_EQ(kit.gpu.counters().lost_interrupts, 1U);
}

TEST_F(RegistersTest, AJobsInterruptHasThePasidOfItsVmid) {
  write(reg::kIhVmidLut + 4 * 2, 0x8005);
  write(reg::kIhVmidLutMm + 4 * 2, 0x8006);
  InterruptEntry entry = an_entry(1);
  entry.vmid = 2;
  kit.gpu.interrupt(entry);
  entry.mm_hub = true;
  kit.gpu.interrupt(entry);
  const auto entries = kit.interrupts();
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(pasid_of(entries[0]), 0x8005U);
  EXPECT_EQ(pasid_of(entries[1]), 0x8006U);
}

}  // namespace
}  // namespace sluice::card::tests
