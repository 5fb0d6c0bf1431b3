// SPDX-License-Identifier: MIT
// What an MI300X has and an MI210 has not: a discovery table, two XCCs, and partitions of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "gpu_kit.h"
#include "models/discovery.h"

namespace sluice::card::tests {
namespace {

using P = Pm4;

constexpr std::uint32_t kXcc1 = 0x400000;            // bytes to the second XCC's registers
constexpr std::uint32_t kHyperXcpControl = 0x3e0a0;  // CP_HYP_XCP_CTL
constexpr std::uint32_t kComputeStatus = 0x3a0c;     // PARTITION_COMPUTE_STATUS

class Mi300x : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kRingDwords = 256;
  static constexpr std::uint64_t kReports = kRings + 0x10000, kFences = kRings + 0x11000;
  static constexpr std::uint64_t kRunList = kRings + 0x12000;
  static constexpr std::uint32_t kHiqDoorbell = 0x3000, kUserDoorbell = 0x8000;
  static constexpr std::uint32_t kStride = 0x5000;  // of a queue's MQDs
  static constexpr std::uint64_t kQueueMqd = kMqds + 0x10000;
  static constexpr std::uint64_t kUserVa = 0x7f00'0000'0000;
  static constexpr std::uint64_t kPointers = 0x2000, kTarget = 0x3000;  // of the process, from kUserVa

  void write(std::uint32_t byte, std::uint32_t value) { kit.gpu.write_register(byte, value); }
  std::uint32_t read(std::uint32_t byte) { return kit.gpu.read_register(byte); }

  static std::uint32_t kiq_doorbell(unsigned xcc) { return 0x100 * xcc; }
  void start_kiq(unsigned xcc) {
    const std::uint32_t base = xcc * kXcc1;
    const std::uint64_t ring = kit.fb(kiq[xcc].offset());
    for (unsigned pipe = 0; pipe < 8; ++pipe) write(base + reg::kCpMeIntCntl + 4 * pipe, 0xffffffff);
    write(base + reg::kGrbmGfxCntl, 2 << 2 | 1);
    write(base + 0xc950, kiq_doorbell(xcc) | 1 << 30);
    write(base + 0xc934, P::lo(ring >> 8));
    write(base + 0xc938, P::hi(ring >> 8));
    write(base + 0xc958, 7);
    write(base + 0xc940, P::lo(kit.fb(kReports + 64 * xcc)));
    write(base + 0xc944, P::hi(kit.fb(kReports + 64 * xcc)));
    write(base + reg::kHqdActive, 1);
    write(base + reg::kGrbmGfxCntl, 0);
  }

  void put_mqd(std::uint64_t mqd, std::uint64_t ring, std::uint64_t report, std::uint32_t doorbell,
               std::uint32_t control_bits = 0) {
    const auto put = [&](std::size_t index, std::uint64_t value) {
      kit.put_vram(mqd + (mqd::compute::kSlot + index) * 4, static_cast<std::uint32_t>(value));
    };
    put(mqd::compute::kPqBase, ring >> 8);
    put(mqd::compute::kPqBase + 1, ring >> 40);
    put(mqd::compute::kPqControl, 7 | control_bits);
    put(mqd::compute::kPqRptrReport, report);
    put(mqd::compute::kPqRptrReport + 1, report >> 32);
    put(mqd::compute::kPqDoorbell, doorbell);
  }
  std::uint32_t mqd_value(std::uint64_t mqd, std::size_t index) {
    return kit.vram_value<std::uint32_t>(mqd + (mqd::compute::kSlot + index) * 4);
  }

  // As hiq_load_mqd_kiq_v9_4_3(): the same ring on each XCC, and only the first one reports how far it is.
  void start_hiqs(std::initializer_list<unsigned> xccs) {
    for (const unsigned xcc : xccs) {
      const std::uint64_t mqd = kMqds + 0x1000 * xcc;
      put_mqd(mqd, kit.fb(hiq.offset()), kit.fb(kReports + 16), kHiqDoorbell,
              xcc == *xccs.begin() ? 0 : 1 << 27);
      kiq[xcc].run(Pm4().packet(0xa2, {1U << 29 | 1U << 26 | 1U << 18 | 2U << 16, kHiqDoorbell,
                                       P::lo(kit.fb(mqd)), P::hi(kit.fb(mqd)), 0, 0}));
    }
    hiq.run(Pm4().packet(0xa0, {1U << 29 | 0xfff8, 0xffffff00, 0, 0, 0, 0, 0}));
  }

  // A PM4 queue of a process, with an MQD for each XCC.
  void run_queue() {
    tables.map_vram(kUserVa, kData, 0x8000);
    for (const std::uint64_t mqd : {kQueueMqd, kQueueMqd + kStride}) {
      put_mqd(mqd, kUserVa, kUserVa + kPointers, kUserDoorbell);
      kit.put_vram(mqd + mqd::compute::kStride * 4, kStride);
    }
    Pm4 list;
    list.packet(
        0xa1,
        {0x8001, P::lo(tables.root()), P::hi(tables.root()), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
         0});
    list.packet(0xa2, {1U << 29 | 1U << 4, kUserDoorbell, P::lo(kit.fb(kQueueMqd)), P::hi(kit.fb(kQueueMqd)),
                       P::lo(kUserVa + kPointers + 8), P::hi(kUserVa + kPointers + 8)});
    std::uint64_t at = kRunList;
    for (const std::uint32_t word : list.words()) {
      kit.put_vram(at, word);
      at += 4;
    }
    hiq.run(Pm4().packet(0xa5, {P::lo(kit.fb(kRunList)), P::hi(kit.fb(kRunList)),
                                static_cast<std::uint32_t>(list.words().size()) | 1U << 23}));
  }
  void submit(const Pm4& packets) {
    for (const std::uint32_t word : packets.words()) {
      kit.put_vram(kData + written_++ % kRingDwords * 4, word);
    }
    kit.put_vram(kData + kPointers + 8, written_);
    kit.doorbell(kUserDoorbell, written_);
    kit.run();
  }

  // As gfx_v9_4_3_switch_compute_partition().
  void divide(std::uint32_t xccs_of_partition) {
    for (unsigned xcc = 0; xcc < 2; ++xcc)
      write(xcc * kXcc1 + kHyperXcpControl, xccs_of_partition << 3 | xcc % xccs_of_partition);
  }

  GpuKit kit{mi300x()};
  TableKit tables{kit};
  RingKit kiq[2] = {{kit, kRings, kRingDwords, kiq_doorbell(0)},
                    {kit, kRings + 0x1000, kRingDwords, kiq_doorbell(1)}};
  RingKit hiq{kit, kRings + 0x2000, kRingDwords, kHiqDoorbell};

 private:
  std::uint64_t written_ = 0;
};

// ---- the discovery table ----

class Discovery : public Mi300x {
 protected:
  std::span<const std::byte> table() const { return kit.vram().last(kDiscoveryFromEnd); }
  std::uint32_t word(std::size_t at) const { return value_in<std::uint32_t>(table(), at); }
  std::uint32_t half(std::size_t at) const { return value_in<std::uint16_t>(table(), at); }
  std::uint32_t byte(std::size_t at) const { return value_in<std::uint8_t>(table(), at); }
  std::uint32_t sum(std::size_t at, std::size_t bytes) const {
    const auto piece = table().subspan(at, bytes);
    return std::accumulate(piece.begin(), piece.end(), 0U,
                           [](std::uint32_t so_far, std::byte each) {
                             return so_far + static_cast<std::uint8_t>(each);
                           }) &
           0xffff;
  }
  std::size_t place(unsigned index) const { return half(12 + 8 * index); }
};

TEST_F(Discovery, IsSignedAndItsSumsAreRight) {
  EXPECT_EQ(word(0), 0x28211407U);
  EXPECT_EQ(sum(10, half(10) - 10), half(8));
  EXPECT_LT(half(10), 10U << 10);  // what the driver reads (DISCOVERY_TMR_SIZE)
  EXPECT_EQ(word(place(0)), 0x53445049U);
  EXPECT_EQ(sum(place(0), half(place(0) + 6)), half(14));
  EXPECT_EQ(word(place(1)), 0x4347U);
  EXPECT_EQ(sum(place(1), word(place(1) + 8)), half(22));
  EXPECT_EQ(word(place(2)), 0x56524148U);
  EXPECT_EQ(sum(place(2), 8 + 4 * 32), half(30));
}

TEST_F(Discovery, HasTwoXccsAndFourSdmaEngines) {
  const std::size_t header = place(0);
  ASSERT_EQ(half(header + 12), 1U);  // dies
  const std::size_t die = half(header + 16);
  std::map<std::uint32_t, unsigned> blocks;
  std::size_t at = die + 4;
  for (std::uint32_t i = 0; i < half(die + 2); ++i) {
    EXPECT_EQ(byte(at + 2), blocks[half(at)]) << "instances of one block count from 0";
    ++blocks[half(at)];
    at += 8 + 4 * byte(at + 3);
  }
  EXPECT_EQ(at, header + half(header + 6));
  EXPECT_EQ(blocks[11], 2U);
  EXPECT_EQ(blocks[42], 4U);
}

TEST_F(Discovery, IsThereAgainAfterAReset) {
  std::fill(kit.vram().end() - kDiscoveryFromEnd, kit.vram().end(), std::byte{0});
  kit.gpu.reset();
  EXPECT_EQ(word(0), 0x28211407U);
}

// ---- XCCs ----

TEST_F(Mi300x, EachXccHasItsRegisters) {
  write(reg::kScratchReg0, 1);
  write(reg::kPcieIndex2, kXcc1 + reg::kScratchReg0);  // beyond the BAR
  write(reg::kPcieData2, 2);
  EXPECT_EQ(read(reg::kScratchReg0), 1U);
  EXPECT_EQ(read(kXcc1 + reg::kScratchReg0), 2U);
  EXPECT_EQ(mi300x().registers.name(kXcc1 + reg::kScratchReg0), "XCC1.SCRATCH_REG0");
}

TEST_F(Mi300x, ARingNamesRegistersOfItsOwnXcc) {
  start_kiq(0);
  start_kiq(1);
  kiq[1].run(Pm4().set_scratch(0xdeadbeef));
  EXPECT_EQ(read(reg::kScratchReg0), 0U);
  EXPECT_EQ(read(kXcc1 + reg::kScratchReg0), 0xdeadbeefU);
}

TEST_F(Mi300x, AnInterruptNamesTheNodeOfItsXcc) {
  start_kiq(0);
  start_kiq(1);
  kiq[0].run(Pm4().write_register(reg::kCpcIntStatus, 0x20000000));
  kiq[1].run(Pm4().write_register(reg::kCpcIntStatus, 0x20000000));
  const auto told = kit.interrupts();
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[0][3] >> 16, 1U);
  EXPECT_EQ(told[1][3] >> 16, 2U);
}

TEST_F(Mi300x, AFaultIsInTheHubOfItsXcc) {
  start_kiq(1);
  kiq[1].run(Pm4().write_memory(0x123000, 1));  // nothing is mapped there
  const std::uint32_t status = reg::hub::kFaultStatus;
  EXPECT_EQ(read(mi300x().of(Hub::kGc).base + status), 0U);
  EXPECT_NE(read(mi300x().of(gc_hub(1)).base + status), 0U);
  const auto told = kit.interrupts();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(client_of(told[0]), 0x1bU);
  EXPECT_EQ(told[0][3] >> 16, 2U);
}

// ---- partitions ----

TEST_F(Mi300x, NbioTellsTheModeThatTheXccsWereToldOf) {
  EXPECT_EQ(read(kComputeStatus) >> 4 & 0xf, 0U);  // SPX
  divide(1);
  EXPECT_EQ(read(kComputeStatus) >> 4 & 0xf, 4U);  // CPX
  divide(2);
  EXPECT_EQ(read(kComputeStatus) >> 4 & 0xf, 0U);
}

TEST_F(Mi300x, AQueueOfBothXccsRunsOnceAndHasBothMqds) {
  start_kiq(0);
  start_kiq(1);
  start_hiqs({0, 1});
  run_queue();
  EXPECT_EQ(kit.gpu.command_processor(0).user_queues(), 1U);
  EXPECT_EQ(kit.gpu.command_processor(1).user_queues(), 0U);
  submit(Pm4().write_memory(kUserVa + kTarget, 42).fence(kUserVa + kTarget + 8, 6));
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kData + kTarget), 42U);
  EXPECT_EQ(kit.interrupts().size(), 1U);
  hiq.submit(Pm4().packet(0xa3, {2U << 4, 0, 0, 0, 0}));
  hiq.submit(Pm4().packet(0xa4, {2U << 30, 0, P::lo(kit.fb(kFences)), P::hi(kit.fb(kFences)), 0x55, 0}));
  kit.run();
  EXPECT_EQ(kit.vram_value<std::uint64_t>(kFences), 0x55U);
  for (const std::uint64_t mqd : {kQueueMqd, kQueueMqd + kStride})
    EXPECT_EQ(mqd_value(mqd, mqd::compute::kPqRptr), 13U);
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kReports + 16), hiq.written());  // by the master alone
}

TEST_F(Mi300x, AQueueOfTheSecondPartitionRunsOnItsXcc) {
  divide(1);
  start_kiq(1);
  start_hiqs({1});
  run_queue();
  EXPECT_EQ(kit.gpu.command_processor(0).user_queues(), 0U);
  EXPECT_EQ(kit.gpu.command_processor(1).user_queues(), 1U);
  submit(Pm4().fence(kUserVa + kTarget, 6));
  EXPECT_EQ(kit.vram_value<std::uint32_t>(kData + kTarget), 6U);
  const auto told = kit.interrupts();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0][3] >> 16, 2U);
}

// ---- all models ----

TEST(Models, RowsOfRegistersDoNotOverlap) {
  for (const Model* model : all_models()) {
    std::map<std::uint32_t, std::string> seen;
    for (const RegisterRow& row : model->registers.rows()) {
      for (std::uint32_t i = 0; i < row.count; ++i) {
        const auto [at, fresh] = seen.emplace(row.byte + i * row.stride, row.name);
        EXPECT_TRUE(fresh) << model->name << ": " << row.name << " and " << at->second;
      }
    }
  }
}

TEST(Models, AreFoundByTheirNames) {
  EXPECT_EQ(find_model("mi210"), &mi210());
  EXPECT_EQ(find_model("mi300x"), &mi300x());
  EXPECT_EQ(find_model("MI300X"), nullptr);
  EXPECT_EQ(find_model("mi300"), nullptr);
}

}  // namespace
}  // namespace sluice::card::tests
