// SPDX-License-Identifier: MIT
// The command processor on a whole GPU: KIQ by registers, the driver's compute rings, and the scheduler with
// queues of processes.
#include <gtest/gtest.h>

#include "gpu_kit.h"

namespace sluice::card::tests {
namespace {

using P = Pm4;

constexpr std::uint32_t kKiqDoorbell = 0x0;
constexpr std::uint32_t kComputeDoorbell = 0x18;
constexpr std::uint32_t kHiqDoorbell = 0x3000;
constexpr std::uint32_t kUserDoorbell = 0x8000;
constexpr std::uint64_t kRingDwords = 256;
constexpr std::uint64_t kUserVa = 0x7f00'0000'0000;
constexpr std::uint32_t kPasid = 0x8001;

// Of a process, mapped at kUserVa; offsets from kData.
constexpr std::uint64_t kUserRing = 0x0000;
constexpr std::uint64_t kUserPointers = 0x2000;  // read, write
constexpr std::uint64_t kUserTarget = 0x3000;
constexpr std::uint64_t kUserBytes = 0x8000;
constexpr std::uint64_t kUserStride = 0x10000;  // from one queue's memory to the next one's

class CommandProcessorTest : public ::testing::Test {
 protected:
  void SetUp() override { start_kiq(); }

  void write_slot(std::uint32_t byte, std::uint32_t value) { kit.gpu.write_register(byte, value); }

  // As gfx_v9_0_kiq_init_register(): me 2, pipe 1, queue 0.
  void start_kiq() {
    write_slot(reg::kGrbmGfxCntl, 2 << 2 | 1);
    write_slot(0xc950, kKiqDoorbell | 1 << 30);
    write_slot(0xc934, P::lo(kit.fb(kiq.offset()) >> 8));
    write_slot(0xc938, P::hi(kit.fb(kiq.offset()) >> 8));
    write_slot(0xc958, 7);  // 2^8 dwords
    write_slot(0xc940, P::lo(kit.fb(kReports)));
    write_slot(0xc944, P::hi(kit.fb(kReports)));
    write_slot(0xc9ec, 0);
    write_slot(0xc9f0, 0);
    write_slot(reg::kHqdActive, 1);
    write_slot(reg::kGrbmGfxCntl, 0);
  }

  // An MQD of a compute queue in VRAM.
  void put_mqd(std::uint64_t mqd, std::uint64_t ring, std::uint64_t dwords, std::uint64_t report,
               std::uint32_t doorbell, bool aql = false) {
    const std::uint64_t slot = mqd + mqd::compute::kSlot * 4;
    const auto put = [&](std::size_t index, std::uint64_t value) {
      kit.put_vram<std::uint32_t>(slot + index * 4, static_cast<std::uint32_t>(value));
    };
    put(mqd::compute::kPqBase, ring >> 8);
    put(mqd::compute::kPqBase + 1, ring >> 40);
    std::uint32_t log = 0;
    while ((std::uint64_t{2} << log) < dwords) ++log;
    put(mqd::compute::kPqControl, log);
    put(mqd::compute::kPqRptrReport, report);
    put(mqd::compute::kPqRptrReport + 1, report >> 32);
    put(mqd::compute::kPqDoorbell, doorbell);
    put(mqd::compute::kAqlControl, aql ? 1 : 0);
  }
  std::uint32_t mqd_value(std::uint64_t mqd, std::size_t index) {
    return kit.vram_value<std::uint32_t>(mqd + (mqd::compute::kSlot + index) * 4);
  }

  void start_compute() {
    put_mqd(kMqds, kit.fb(compute.offset()), kRingDwords, kit.fb(kReports + 8), kComputeDoorbell);
    kiq.run(
        Pm4().packet(0xa2, {1U << 29, kComputeDoorbell, P::lo(kit.fb(kMqds)), P::hi(kit.fb(kMqds)), 0, 0}));
  }
  void start_hiq() {
    put_mqd(kMqds + 0x1000, kit.fb(hiq.offset()), kRingDwords, kit.fb(kReports + 16), kHiqDoorbell);
    kiq.run(Pm4().packet(0xa2, {1U << 29 | 1U << 26 | 1U << 18 | 2U << 16, kHiqDoorbell,
                                P::lo(kit.fb(kMqds + 0x1000)), P::hi(kit.fb(kMqds + 0x1000)), 0, 0}));
    hiq.run(Pm4().packet(0xa0, {1U << 29 | 0xfff8, 0xffffff00, 0, 0, 0, 0, 0}));
  }

  // A process' queue `n` in VRAM and its tables; what a runlist says of it.
  std::uint64_t user_va(unsigned n) const { return kUserVa + n * kUserStride; }
  std::uint64_t user_offset(unsigned n) const { return kData + n * kUserStride; }
  std::uint64_t user_mqd(unsigned n) const { return kMqds + 0x10000 + n * 0x1000; }
  static std::uint32_t user_doorbell(unsigned n) { return kUserDoorbell + n * 8; }

  void make_user_memory(unsigned n) { tables.map_vram(user_va(n), user_offset(n), kUserBytes); }
  void make_pm4_queue(unsigned n) {
    make_user_memory(n);
    put_mqd(user_mqd(n), user_va(n) + kUserRing, kRingDwords, user_va(n) + kUserPointers, user_doorbell(n));
  }
  void make_sdma_queue(unsigned n) {
    make_user_memory(n);
    const std::uint64_t mqd = user_mqd(n);
    kit.put_vram<std::uint32_t>(mqd + 0, 8 << 1);
    kit.put_vram<std::uint32_t>(mqd + 4, P::lo(user_va(n) >> 8));
    kit.put_vram<std::uint32_t>(mqd + 8, P::hi(user_va(n) >> 8));
    kit.put_vram<std::uint32_t>(mqd + 32, P::hi(user_va(n) + kUserPointers));
    kit.put_vram<std::uint32_t>(mqd + 36, P::lo(user_va(n) + kUserPointers));
  }
  static void add_process(Pm4& list, std::uint32_t pasid, std::uint64_t root) {
    list.packet(0xa1, {pasid, P::lo(root), P::hi(root), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  }
  // `engine`: bits of the packet's control dword.
  void add_queue(Pm4& list, unsigned n, std::uint32_t engine = 0) {
    const std::uint64_t mqd = kit.fb(user_mqd(n));
    const std::uint64_t write = user_va(n) + kUserPointers + 8;
    list.packet(0xa2, {1U << 29 | 1U << 4 | engine, user_doorbell(n), P::lo(mqd), P::hi(mqd), P::lo(write),
                       P::hi(write)});
  }
  void run_list(const Pm4& list) {
    std::uint64_t at = kRunList;
    for (const std::uint32_t word : list.words()) {
      kit.put_vram<std::uint32_t>(at, word);
      at += 4;
    }
    const std::uint64_t address = kit.fb(kRunList);
    hiq.run(Pm4().packet(
        0xa5, {P::lo(address), P::hi(address), static_cast<std::uint32_t>(list.words().size()) | 1U << 23}));
  }
  // UNMAP_QUEUES of all and QUERY_STATUS, as pm_send_unmap_queue() and pm_send_query_status().
  void submit_unmap_all(std::uint64_t fence) {
    hiq.submit(Pm4().packet(0xa3, {2U << 4, 0, 0, 0, 0}));
    hiq.submit(Pm4().packet(
        0xa4, {2U << 30, 0, P::lo(kit.fb(kFences)), P::hi(kit.fb(kFences)), P::lo(fence), P::hi(fence)}));
  }
  std::uint64_t hiq_fence() const { return kit.vram_value<std::uint64_t>(kFences); }

  // Packets into a PM4 queue of a process; as a process does it.
  void submit_user(unsigned n, const Pm4& packets) {
    std::uint64_t& written = user_written_[n];
    for (const std::uint32_t word : packets.words()) {
      kit.put_vram<std::uint32_t>(user_offset(n) + kUserRing + written++ % kRingDwords * 4, word);
    }
    kit.put_vram<std::uint64_t>(user_offset(n) + kUserPointers + 8, written);
    kit.doorbell(user_doorbell(n), written);
  }

  static constexpr std::uint64_t kReports = kRings + 0x10000;
  static constexpr std::uint64_t kFences = kRings + 0x11000;
  static constexpr std::uint64_t kRunList = kRings + 0x12000;
  static constexpr std::uint64_t kIb = kRings + 0x13000;

  GpuKit kit;
  TableKit tables{kit};
  RingKit kiq{kit, kRings, kRingDwords, kKiqDoorbell};
  RingKit compute{kit, kRings + 0x1000, kRingDwords, kComputeDoorbell};
  RingKit hiq{kit, kRings + 0x2000, kRingDwords, kHiqDoorbell};

 private:
  std::array<std::uint64_t, 8> user_written_{};
};

// ---- KIQ ----

TEST_F(CommandProcessorTest, RegistersStartKiq) {
  kiq.run(Pm4().set_scratch(0xdeadbeef));
  EXPECT_EQ(kit.gpu.read_register(reg::kScratchReg0), 0xdeadbeefU);
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kReports), 3U);
  kit.gpu.write_register(reg::kGrbmGfxCntl, 2 << 2 | 1);
  EXPECT_EQ(kit.gpu.read_register(reg::kHqdActive), 1U);
  EXPECT_EQ(kit.gpu.read_register(0xc93c), 3U);  // CP_HQD_PQ_RPTR
}

TEST_F(CommandProcessorTest, ADequeueRequestStopsIt) {
  kit.gpu.write_register(reg::kGrbmGfxCntl, 2 << 2 | 1);
  kit.gpu.write_register(reg::kHqdDequeueRequest, 1);
  EXPECT_EQ(kit.gpu.read_register(reg::kHqdActive), 0U);
  kiq.run(Pm4().set_scratch(1));
  EXPECT_EQ(kit.gpu.read_register(reg::kScratchReg0), 0U);
  EXPECT_EQ(kit.gpu.counters().stray_doorbells, 1U);
}

TEST_F(CommandProcessorTest, ARingWraps) {
  for (std::uint32_t i = 1; i <= 200; ++i) {
    kiq.run(Pm4().set_scratch(i));
    ASSERT_EQ(kit.gpu.read_register(reg::kScratchReg0), i);
  }
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kReports), 600U % kRingDwords);
}

TEST_F(CommandProcessorTest, KiqAsksForItsInterruptByARegister) {
  kiq.run(Pm4().write_memory(kit.fb(kFences), 5).write_register(reg::kCpcIntStatus, 0x20000000));
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kFences), 5U);
  const auto told = kit.interrupts();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(client_of(told[0]), 0x14U);
  EXPECT_EQ(source_of(told[0]), 178U);
  EXPECT_EQ(ring_id_of(told[0]), 2U << 2 | 1);
}

TEST_F(CommandProcessorTest, KiqFlushesTlbs) {
  const std::uint32_t hub = mi210_places::kHubs[0];
  kiq.run(Pm4()
              .packet(0x98, {0})
              .packet(0x3c, {3 | 1 << 6, (hub + reg::hub::kInvalidateReq) / 4,
                             (hub + reg::hub::kInvalidateAck) / 4, 0xf80001, 1, 0x20})
              .set_scratch(3));
  EXPECT_EQ(kit.gpu.read_register(reg::kScratchReg0), 3U);
}

TEST_F(CommandProcessorTest, AnUnknownPacketIsTold) {
  kiq.run(Pm4().packet(0xc7, {0}).set_scratch(1));
  EXPECT_EQ(kit.gpu.read_register(reg::kScratchReg0), 0U);
  const auto told = kit.interrupts();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(source_of(told[0]), 183U);
  EXPECT_EQ(kit.gpu.counters().queues_stopped, 1U);
}

TEST_F(CommandProcessorTest, PacketsOfTheSchedulerHaveOneLength) {
  const std::vector<std::pair<std::uint32_t, std::size_t>> packets = {
      {0x98, 1}, {0xa0, 7}, {0xa1, 15}, {0xa2, 6}, {0xa3, 5}, {0xa4, 6}, {0xa5, 3}};
  for (const auto& [op, dwords] : packets) {
    Pm4 packet;
    packet.word(3U << 30 | static_cast<std::uint32_t>(dwords) << 16 | op << 8);  // one more
    for (std::size_t i = 0; i <= dwords; ++i) packet.word(0);
    const std::uint64_t before = kit.gpu.counters().queues_stopped;
    kiq.run(packet);
    EXPECT_EQ(kit.gpu.counters().queues_stopped, before + 1) << op;
    // KIQ stands now.
    kit.gpu.reset();
    kit.set_up();
    kiq.restart();
    start_kiq();
  }
}

TEST_F(CommandProcessorTest, APacketThatIsNotAllThereIsAFault) {
  kiq.run(Pm4().word(3U << 30 | 3U << 16 | 0x37 << 8).word(5 << 8));
  EXPECT_EQ(kit.gpu.counters().queues_stopped, 1U);
}

TEST_F(CommandProcessorTest, ARingAtNoMemoryIsAVmFault) {
  kit.gpu.write_register(reg::kGrbmGfxCntl, 1 << 2);
  write_slot(0xc950, 0x100 | 1 << 30);
  write_slot(0xc934, 0x1234);
  write_slot(0xc958, 7);
  write_slot(reg::kHqdActive, 1);
  kit.doorbell(0x100, 3);
  kit.run();
  EXPECT_EQ(kit.gpu.counters().vm_faults, 1U);
  const auto told = kit.interrupts();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(client_of(told[0]), 0x1bU);
  EXPECT_EQ(vmid_of(told[0]), 0U);
}

TEST_F(CommandProcessorTest, KiqThatUnmapsItselfIsGone) {
  kiq.run(Pm4().packet(0xa3, {1U << 29, kKiqDoorbell, 0, 0, 0}).set_scratch(1));
  kiq.run(Pm4().set_scratch(2));
  EXPECT_NE(kit.gpu.read_register(reg::kScratchReg0), 2U);
}

TEST_F(CommandProcessorTest, AHaltedEngineDoesNothing) {
  kit.gpu.write_register(reg::kCpMecCntl, 1 << 28);  // KIQ is of the second one
  kiq.run(Pm4().set_scratch(2));
  EXPECT_EQ(kit.gpu.read_register(reg::kScratchReg0), 0U);
  kit.gpu.write_register(reg::kCpMecCntl, 1 << 30);
  kit.run();
  EXPECT_EQ(kit.gpu.read_register(reg::kScratchReg0), 2U);
}

TEST_F(CommandProcessorTest, DoorbellsAreOffUntilTheDriverTurnsThemOn) {
  kit.gpu.write_register(reg::kDoorbellAperEn, 0);
  kiq.run(Pm4().set_scratch(2));
  EXPECT_EQ(kit.gpu.read_register(reg::kScratchReg0), 0U);
}

TEST_F(CommandProcessorTest, APipeSendsWhatItsRegisterSays) {
  start_compute();
  kit.gpu.write_register(reg::kGrbmGfxCntl, 1 << 2);
  kit.gpu.write_register(reg::kCpcIntCntl, 1 << 24);  // bad packets only
  EXPECT_EQ(kit.gpu.read_register(reg::kCpMeIntCntl), 1U << 24);
  compute.run(Pm4().fence(kit.fb(kFences), 11));
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kFences), 11U);
  EXPECT_TRUE(kit.interrupts().empty());
  compute.run(Pm4().packet(0xc7, {0}));
  EXPECT_EQ(kit.interrupts().size(), 1U);
}

// ---- compute rings ----

TEST_F(CommandProcessorTest, KiqMapsAComputeRing) {
  start_compute();
  compute.run(Pm4().set_scratch(7));
  EXPECT_EQ(kit.gpu.read_register(reg::kScratchReg0), 7U);
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kReports + 8), 3U);
  kit.gpu.write_register(reg::kGrbmGfxCntl, 1 << 2);
  EXPECT_EQ(kit.gpu.read_register(reg::kHqdActive), 1U);
}

TEST_F(CommandProcessorTest, KiqUnmapsItAndTheMqdHasThePointers) {
  start_compute();
  compute.run(Pm4().set_scratch(7));
  kiq.run(Pm4().packet(0xa3, {1U << 29 | 1, kComputeDoorbell, 0, 0, 0}));
  EXPECT_EQ(mqd_value(kMqds, mqd::compute::kPqRptr), 3U);
  EXPECT_EQ(mqd_value(kMqds, mqd::compute::kPqWptr), 3U);
  kit.gpu.write_register(reg::kGrbmGfxCntl, 1 << 2);
  EXPECT_EQ(kit.gpu.read_register(reg::kHqdActive), 0U);
  compute.run(Pm4().set_scratch(8));
  EXPECT_EQ(kit.gpu.read_register(reg::kScratchReg0), 7U);
}

TEST_F(CommandProcessorTest, AFenceIsWrittenAndTold) {
  start_compute();
  compute.run(Pm4().fence(kit.fb(kFences), 11));
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kFences), 11U);
  const auto told = kit.interrupts();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(source_of(told[0]), 181U);
  EXPECT_EQ(ring_id_of(told[0]), 1U << 2);
}

TEST_F(CommandProcessorTest, AJobRunsInItsVmid) {
  start_compute();
  make_user_memory(0);
  kit.gpu.write_register(mi210_places::kHubs[0] + reg::hub::kContextBaseLo + 8, P::lo(tables.root()));
  std::uint64_t at = user_offset(0);
  for (const std::uint32_t word : Pm4().write_memory(user_va(0) + kUserTarget, 99).words()) {
    kit.put_vram<std::uint32_t>(at, word);
    at += 4;
  }
  compute.run(Pm4().indirect(user_va(0), 5, 1).set_scratch(4));
  EXPECT_EQ(kit.vram_value<std::uint32_t>(user_offset(0) + kUserTarget), 99U);
  EXPECT_EQ(kit.gpu.read_register(reg::kScratchReg0), 4U);
}

TEST_F(CommandProcessorTest, AJobAtNoMemoryIsAVmFaultOfItsVmid) {
  start_compute();
  kit.gpu.write_register(mi210_places::kHubs[0] + reg::hub::kContextBaseLo + 8, P::lo(tables.root()));
  kit.gpu.write_register(reg::kIhVmidLut + 4, 0x8003);
  compute.run(Pm4().indirect(0x123000, 5, 1));
  const auto told = kit.interrupts();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(client_of(told[0]), 0x1bU);
  EXPECT_EQ(vmid_of(told[0]), 1U);
  EXPECT_EQ(pasid_of(told[0]), 0x8003U);
  EXPECT_EQ(told[0][4], 0x123U);
}

TEST_F(CommandProcessorTest, AJobsWriteToNoMemoryIsLostAndTheRingGoesOnAsTheDriverSetsIt) {
  start_compute();
  make_user_memory(0);
  const std::uint32_t hub = mi210_places::kHubs[0];
  kit.gpu.write_register(hub + reg::hub::kFaultCntl, 0x1ffc);
  kit.gpu.write_register(hub + reg::hub::kContextBaseLo + 8, P::lo(tables.root()));
  const Pm4 job = Pm4().write_memory(0x123000, 5).write_memory(user_va(0) + kUserTarget, 6);
  std::uint64_t at = user_offset(0);
  for (const std::uint32_t word : job.words()) {
    kit.put_vram<std::uint32_t>(at, word);
    at += 4;
  }
  compute.run(Pm4().indirect(user_va(0), static_cast<std::uint32_t>(job.words().size()), 1).set_scratch(7));
  EXPECT_EQ(kit.vram_value<std::uint32_t>(user_offset(0) + kUserTarget), 6U);
  EXPECT_EQ(kit.gpu.read_register(reg::kScratchReg0), 7U);
  EXPECT_EQ(kit.gpu.counters().vm_faults, 1U);
  EXPECT_EQ(kit.gpu.counters().queues_stopped, 0U);
  EXPECT_NE(kit.gpu.read_register(hub + reg::hub::kFaultStatus), 0U);
  EXPECT_EQ(kit.interrupts().size(), 1U);
}

TEST_F(CommandProcessorTest, AJobMayNotWriteRegistersOfTheDriver) {
  start_compute();
  make_user_memory(0);
  kit.gpu.write_register(mi210_places::kHubs[0] + reg::hub::kContextBaseLo + 8, P::lo(tables.root()));
  std::uint64_t at = user_offset(0);
  for (const std::uint32_t word : Pm4().write_register(reg::kGrbmGfxCntl, 1).words()) {
    kit.put_vram<std::uint32_t>(at, word);
    at += 4;
  }
  compute.run(Pm4().indirect(user_va(0), 5, 1));
  EXPECT_EQ(kit.gpu.read_register(reg::kGrbmGfxCntl), 0U);
  const auto told = kit.interrupts();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(source_of(told[0]), 184U);
}

TEST_F(CommandProcessorTest, AComputeRingIsNoScheduler) {
  start_compute();
  compute.run(Pm4().packet(0xa3, {2U << 4, 0, 0, 0, 0}));
  const auto told = kit.interrupts();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(source_of(told[0]), 183U);
}

TEST_F(CommandProcessorTest, APacketWaitsAndGoesOn) {
  start_compute();
  compute.run(Pm4().wait_memory(kit.fb(kFences), 1).set_scratch(5));
  EXPECT_EQ(kit.gpu.read_register(reg::kScratchReg0), 0U);
  EXPECT_TRUE(kit.gpu.work());  // somebody has to ask again
  kit.put_vram<std::uint32_t>(kFences, 1);
  kit.run();
  EXPECT_EQ(kit.gpu.read_register(reg::kScratchReg0), 5U);
  EXPECT_FALSE(kit.gpu.work());
}

TEST_F(CommandProcessorTest, APacketWaitsInAnIbAndGoesOnThere) {
  start_compute();
  std::uint64_t at = kIb;
  for (const std::uint32_t word : Pm4().wait_memory(kit.fb(kFences), 1).set_scratch(5).words()) {
    kit.put_vram<std::uint32_t>(at, word);
    at += 4;
  }
  compute.run(Pm4().indirect(kit.fb(kIb), 10, 0).write_memory(kit.fb(kFences + 8), 3));
  EXPECT_EQ(kit.gpu.read_register(reg::kScratchReg0), 0U);
  kiq.run(Pm4().write_memory(kit.fb(kFences), 1));  // other rings go on
  EXPECT_EQ(kit.gpu.read_register(reg::kScratchReg0), 5U);
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kFences + 8), 3U);
}

TEST_F(CommandProcessorTest, AHeldFenceIsWrittenWhenItIsReleased) {
  start_compute();
  kit.gpu.faults().fence = Faults::Fence::kHold;
  compute.run(Pm4().fence(kit.fb(kFences), 11));
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kFences), 0U);
  kiq.run(Pm4().set_scratch(2));  // KIQ is never held
  EXPECT_EQ(kit.gpu.read_register(reg::kScratchReg0), 2U);
  kit.gpu.faults().fence = Faults::Fence::kPass;
  kit.run();
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kFences), 11U);
}

TEST_F(CommandProcessorTest, AHangingFenceIsNeverWritten) {
  start_compute();
  kit.gpu.faults().fence = Faults::Fence::kHang;
  compute.run(Pm4().fence(kit.fb(kFences), 11));
  EXPECT_EQ(kit.gpu.faults().fence, Faults::Fence::kPass);
  kit.run();
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kFences), 0U);
}

// ---- the scheduler ----

TEST_F(CommandProcessorTest, ARunlistRunsQueuesOfAProcess) {
  start_hiq();
  make_pm4_queue(0);
  Pm4 list;
  add_process(list, kPasid, tables.root());
  add_queue(list, 0);
  run_list(list);
  submit_user(0, Pm4().write_memory(user_va(0) + kUserTarget, 42).fence(user_va(0) + kUserTarget + 8, 6));
  kit.run();
  EXPECT_EQ(kit.vram_value<std::uint32_t>(user_offset(0) + kUserTarget), 42U);
  EXPECT_EQ(kit.vram_value<std::uint32_t>(user_offset(0) + kUserTarget + 8), 6U);
  const auto told = kit.interrupts();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(pasid_of(told[0]), kPasid);
  EXPECT_GE(vmid_of(told[0]), 3U);
  EXPECT_EQ(kit.gpu.command_processor().user_queues(), 1U);
}

TEST_F(CommandProcessorTest, WhatWasWrittenBeforeTheMappingRuns) {
  start_hiq();
  make_pm4_queue(0);
  submit_user(0, Pm4().write_memory(user_va(0) + kUserTarget, 42));
  Pm4 list;
  add_process(list, kPasid, tables.root());
  add_queue(list, 0);
  run_list(list);
  EXPECT_EQ(kit.vram_value<std::uint32_t>(user_offset(0) + kUserTarget), 42U);
}

TEST_F(CommandProcessorTest, UnmappingSavesThePointersAndTheNextRunlistGoesOn) {
  start_hiq();
  make_pm4_queue(0);
  Pm4 list;
  add_process(list, kPasid, tables.root());
  add_queue(list, 0);
  run_list(list);
  for (std::uint32_t i = 0; i < 70; ++i) {  // more than once around
    submit_user(0, Pm4().write_memory(user_va(0) + kUserTarget, i));
    kit.run();
  }
  submit_unmap_all(0x55);
  kit.run();
  EXPECT_EQ(hiq_fence(), 0x55U);
  EXPECT_EQ(kit.gpu.command_processor().user_queues(), 0U);
  EXPECT_EQ(mqd_value(user_mqd(0), mqd::compute::kPqRptr), 350U);
  EXPECT_EQ(mqd_value(user_mqd(0), mqd::compute::kPqWptr), 350U);
  submit_user(0, Pm4().write_memory(user_va(0) + kUserTarget, 1000));
  kit.run();
  EXPECT_EQ(kit.vram_value<std::uint32_t>(user_offset(0) + kUserTarget), 69U);
  run_list(list);
  EXPECT_EQ(kit.vram_value<std::uint32_t>(user_offset(0) + kUserTarget), 1000U);
}

TEST_F(CommandProcessorTest, FeignedWavesAreInTheMqdForSoManyStops) {
  constexpr std::uint32_t kStackBytes = 0x9000;
  start_hiq();
  make_pm4_queue(0);
  const std::uint64_t slot = user_mqd(0) + mqd::compute::kSlot * 4;
  for (const std::size_t index :
       {mqd::compute::kStackOffset, mqd::compute::kStackSize, mqd::compute::kWaveStateOffset})
    kit.put_vram<std::uint32_t>(slot + index * 4, kStackBytes);
  Pm4 list;
  add_process(list, kPasid, tables.root());
  add_queue(list, 0);
  kit.gpu.faults().stops_with_waves = 2;
  for (std::uint64_t stop = 1; stop <= 3; ++stop) {
    run_list(list);
    submit_unmap_all(stop);
    kit.run();
    const bool waves = stop <= 2;
    EXPECT_EQ(mqd_value(user_mqd(0), mqd::compute::kStackOffset) < kStackBytes, waves) << stop;
    EXPECT_EQ(mqd_value(user_mqd(0), mqd::compute::kStackSize), kStackBytes);
    EXPECT_EQ(mqd_value(user_mqd(0), mqd::compute::kWaveStateOffset) > kStackBytes, waves) << stop;
  }
}

TEST_F(CommandProcessorTest, SdmaQueuesOfAProcessRunOnTheirEngine) {
  start_hiq();
  make_sdma_queue(0);
  make_sdma_queue(1);
  Pm4 list;
  add_process(list, kPasid, tables.root());
  add_queue(list, 0, 2U << 26);            // engine 0, as gfx9 names it
  add_queue(list, 1, 4U << 26 | 1U << 2);  // engine 4
  run_list(list);
  for (unsigned n = 0; n < 2; ++n) {
    const std::uint64_t target = user_va(n) + kUserTarget;
    std::uint64_t at = user_offset(n);
    // FENCE and TRAP
    for (const std::uint32_t word : {5U, P::lo(target), P::hi(target), 0x77U + n, 6U, 0x21U + n}) {
      kit.put_vram<std::uint32_t>(at, word);
      at += 4;
    }
    kit.doorbell(user_doorbell(n), 24);
    kit.run();
    EXPECT_EQ(kit.vram_value<std::uint32_t>(user_offset(n) + kUserTarget), 0x77U + n);
  }
  const auto told = kit.interrupts();
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(client_of(told[0]), 8U);
  EXPECT_EQ(client_of(told[1]), 5U);
  EXPECT_EQ(ring_id_of(told[1]), 2U);
  EXPECT_EQ(told[1][4], 0x22U);
  submit_unmap_all(1);
  kit.run();
  EXPECT_EQ(kit.vram_value<std::uint64_t>(user_mqd(0) + 12), 24U);  // read pointer
  EXPECT_EQ(kit.vram_value<std::uint64_t>(user_mqd(0) + 20), 24U);  // write pointer
}

TEST_F(CommandProcessorTest, ARunlistReplacesWhatRuns) {
  start_hiq();
  make_pm4_queue(0);
  make_pm4_queue(1);
  Pm4 first;
  add_process(first, kPasid, tables.root());
  add_queue(first, 0);
  run_list(first);
  Pm4 second;
  add_process(second, kPasid, tables.root());
  add_queue(second, 1);
  run_list(second);
  EXPECT_EQ(kit.gpu.command_processor().user_queues(), 1U);
  EXPECT_EQ(kit.gpu.command_processor().queue_at(user_doorbell(0)), nullptr);
  EXPECT_NE(kit.gpu.command_processor().queue_at(user_doorbell(1)), nullptr);
}

TEST_F(CommandProcessorTest, AQueueThatIsMappedTwiceRunsOnce) {
  start_hiq();
  make_pm4_queue(0);
  Pm4 list;
  add_process(list, kPasid, tables.root());
  add_queue(list, 0);
  add_queue(list, 0);
  run_list(list);
  EXPECT_EQ(kit.gpu.command_processor().user_queues(), 1U);
}

TEST_F(CommandProcessorTest, OneProcessIsUnmapped) {
  start_hiq();
  make_pm4_queue(0);
  make_pm4_queue(1);
  Pm4 list;
  add_process(list, kPasid, tables.root());
  add_queue(list, 0);
  add_process(list, kPasid + 1, tables.root());
  add_queue(list, 1);
  run_list(list);
  hiq.run(Pm4().packet(0xa3, {1U << 4, kPasid, 0, 0, 0}));
  EXPECT_EQ(kit.gpu.command_processor().queue_at(user_doorbell(0)), nullptr);
  EXPECT_NE(kit.gpu.command_processor().queue_at(user_doorbell(1)), nullptr);
}

TEST_F(CommandProcessorTest, ProcessesHaveVmidsOfTheirOwn) {
  start_hiq();
  make_pm4_queue(0);
  make_pm4_queue(1);
  Pm4 list;
  add_process(list, kPasid, tables.root());
  add_queue(list, 0);
  add_process(list, kPasid + 1, tables.root());
  add_queue(list, 1);
  run_list(list);
  for (unsigned n = 0; n < 2; ++n) {
    submit_user(n, Pm4().fence(user_va(n) + kUserTarget, 1));
    kit.run();
  }
  const auto told = kit.interrupts();
  ASSERT_EQ(told.size(), 2U);
  EXPECT_NE(vmid_of(told[0]), vmid_of(told[1]));
}

TEST_F(CommandProcessorTest, AFaultOfAProcessStopsThatQueueOnly) {
  start_hiq();
  make_pm4_queue(0);
  make_pm4_queue(1);
  Pm4 list;
  add_process(list, kPasid, tables.root());
  add_queue(list, 0);
  add_queue(list, 1);
  run_list(list);
  submit_user(0, Pm4().write_memory(0x5555'0000'0000, 1));
  submit_user(1, Pm4().write_memory(user_va(1) + kUserTarget, 3));
  kit.run();
  EXPECT_EQ(kit.vram_value<std::uint32_t>(user_offset(1) + kUserTarget), 3U);
  const auto told = kit.interrupts();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(client_of(told[0]), 0x1bU);
  EXPECT_EQ(pasid_of(told[0]), kPasid);
  EXPECT_EQ(told[0][4], 0x55500000U);
  EXPECT_EQ(told[0][5] & 0xf, 0x5U);
  // The read pointer stays at the packet, and the scheduler works.
  submit_unmap_all(2);
  kit.run();
  EXPECT_EQ(hiq_fence(), 2U);
  EXPECT_EQ(mqd_value(user_mqd(0), mqd::compute::kPqRptr), 0U);
  EXPECT_EQ(mqd_value(user_mqd(0), mqd::compute::kPqWptr), 5U);
}

TEST_F(CommandProcessorTest, AProcessWithoutTablesDoesNotStopTheScheduler) {
  start_hiq();
  make_pm4_queue(0);
  Pm4 list;
  add_process(list, kPasid, entry::kIsPte);  // as the driver has it before the first mapping
  add_queue(list, 0);
  run_list(list);
  submit_unmap_all(3);
  kit.run();
  EXPECT_EQ(hiq_fence(), 3U);
}

TEST_F(CommandProcessorTest, AnMqdAtNoMemoryStopsTheScheduler) {
  start_hiq();
  Pm4 list;
  add_process(list, kPasid, tables.root());
  list.packet(0xa2, {1U << 29 | 1U << 4, user_doorbell(0), 0x1000, 0, 0, 0});
  run_list(list);
  EXPECT_EQ(kit.gpu.counters().vm_faults, 1U);
  submit_unmap_all(3);
  kit.run();
  EXPECT_EQ(hiq_fence(), 0U);
}

TEST_F(CommandProcessorTest, QueuesBeforeAProcessAreRefused) {
  start_hiq();
  make_pm4_queue(0);
  Pm4 list;
  add_queue(list, 0);
  run_list(list);
  EXPECT_EQ(kit.gpu.command_processor().user_queues(), 0U);
  EXPECT_EQ(kit.gpu.counters().queues_stopped, 1U);
}

TEST_F(CommandProcessorTest, ARefusedPreemptionIsMadeUpForLater) {
  start_hiq();
  make_pm4_queue(0);
  Pm4 list;
  add_process(list, kPasid, tables.root());
  add_queue(list, 0);
  run_list(list);
  kit.gpu.faults().refuse_preemption = true;
  submit_unmap_all(9);
  kit.run();
  EXPECT_EQ(hiq_fence(), 0U);
  EXPECT_EQ(kit.gpu.command_processor().user_queues(), 1U);
  submit_user(0, Pm4().write_memory(user_va(0) + kUserTarget, 8));  // it still runs
  kit.run();
  EXPECT_EQ(kit.vram_value<std::uint32_t>(user_offset(0) + kUserTarget), 8U);
  kit.gpu.faults().refuse_preemption = false;
  kit.run();
  EXPECT_EQ(hiq_fence(), 9U);
  EXPECT_EQ(kit.gpu.command_processor().user_queues(), 0U);
}

TEST_F(CommandProcessorTest, TheEndOfALongRunlistIsNotRunAgain) {
  start_hiq();
  make_pm4_queue(0);
  Pm4 list;
  add_process(list, kPasid, tables.root());
  add_queue(list, 0);
  const std::uint64_t address = kit.fb(kRunList);
  list.packet(0xa5, {P::lo(address), P::hi(address), 100 | 1U << 20 | 1U << 23});
  run_list(list);
  EXPECT_EQ(kit.gpu.command_processor().user_queues(), 1U);
  EXPECT_EQ(kit.gpu.counters().runlists, 1U);
  EXPECT_FALSE(kit.gpu.work());
}

// ---- SDMA rings of the driver ----

TEST_F(CommandProcessorTest, AnSdmaRingStartsByItsRegisters) {
  const std::uint32_t base = mi210_places::kSdma[3];
  const std::uint64_t ring = kRings + 0x4000;
  kit.gpu.write_register(base + reg::sdma::kRbBase, P::lo(kit.fb(ring) >> 8));
  kit.gpu.write_register(base + reg::sdma::kRbBaseHi, P::hi(kit.fb(ring) >> 8));
  kit.gpu.write_register(base + reg::sdma::kRbRptrAddrLo, P::lo(kit.fb(kReports + 64)));
  kit.gpu.write_register(base + reg::sdma::kRbRptrAddrHi, P::hi(kit.fb(kReports + 64)));
  kit.gpu.write_register(base + reg::sdma::kDoorbell, 1 << 28);
  kit.gpu.write_register(base + reg::sdma::kDoorbellOffset, 0x8f0);
  kit.gpu.write_register(base + reg::sdma::kRbCntl, 1 | 8 << 1 | 1 << 12);
  std::uint64_t at = ring;
  for (const std::uint32_t word : {5U, P::lo(kit.fb(kFences)), P::hi(kit.fb(kFences)), 0x99U, 6U, 0U}) {
    kit.put_vram<std::uint32_t>(at, word);
    at += 4;
  }
  kit.gpu.write_register(base + mi210_places::kSdmaF32Cntl, 1);  // halted
  kit.doorbell(0x8f0, 24);
  kit.run();
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kFences), 0U);
  kit.gpu.write_register(base + mi210_places::kSdmaF32Cntl, 0);
  kit.run();
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kFences), 0x99U);
  EXPECT_EQ(kit.vram_value<std::uint64_t>(kReports + 64), 24U);
  EXPECT_EQ(kit.gpu.read_register(base + reg::sdma::kRbRptr), 24U);
  const auto told = kit.interrupts();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(client_of(told[0]), 4U);
  EXPECT_EQ(source_of(told[0]), 224U);
  kit.gpu.write_register(base + reg::sdma::kRbCntl, 0);
  kit.doorbell(0x8f0, 48);
  kit.run();
  EXPECT_EQ(kit.gpu.read_register(base + reg::sdma::kRbRptr), 24U);
}

}  // namespace
}  // namespace sluice::card::tests
