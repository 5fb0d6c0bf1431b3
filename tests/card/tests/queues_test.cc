// SPDX-License-Identifier: MIT
// Rings of the SDMA engines and queues of processes, on memory with page tables: doorbells, read pointers,
// interrupts, IBs of a vmid, faults that stop one queue and are reported, faults on demand.
#include <gtest/gtest.h>

#include <vector>

#include "models/mi210.h"
#include "queues_kit.h"
#include "registers/names.h"
#include "sdma/sdma.h"

namespace sluice::card::tests {
namespace {

using Dwords = std::vector<std::uint32_t>;
using State = Queue::State;

constexpr std::uint64_t kDriver = LooseChip::kDriver, kProcess = LooseChip::kProcess;
constexpr std::uint64_t kUnmapped = kProcess + LooseChip::kProcessBytes;  // the page behind
constexpr std::uint64_t kRingBytes = 4096;

Dwords copy(std::uint64_t from, std::uint64_t to, std::uint32_t bytes) {
  return {1, bytes - 1, 0, low(from), high(from), low(to), high(to)};
}
Dwords fence(std::uint64_t to, std::uint32_t value) {
  return {5, low(to), high(to), value};
}
Dwords trap(std::uint32_t context) {
  return {6, context};
}
Dwords ib(std::uint64_t at, std::uint32_t dwords) {
  return {4 | LooseChip::kVmid << 16, low(at), high(at), dwords, 0, 0};
}
Dwords poll_memory(std::uint64_t at, std::uint32_t value) {
  return {8 | 3u << 28 | 1u << 31, low(at), high(at), value, 0xffffffff, 10};
}

// Steps until the queue has nothing more to do at once.
State run(Queue& queue) {
  State state = State::kReady;
  for (int i = 0; i < 10000 && state == State::kReady; ++i) state = queue.step();
  return state;
}

// ---- the driver's rings of SDMA engines

class SdmaRingTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kRing = kDriver, kReport = kDriver + 0x2000, kData = kDriver + 0x4000,
                                 kOther = kDriver + 0x40000;
  static constexpr std::uint64_t kMillisecond = 100'000;  // of the clock

  void start(unsigned engine) {
    queue_ = make_sdma_ring(chip_, {engine, kRing, kRingBytes, 0, kReport});
    end_ = kRing;
  }
  void SetUp() override { start(2); }
  void put(const Dwords& dwords) { end_ = chip_.put_dwords(end_, dwords); }
  State go() {
    queue_->ring(end_ - kRing);
    return run(*queue_);
  }
  // A job of a process: its IB, at `at`, copies so many bytes.
  void put_job(std::uint64_t at, std::uint32_t bytes) {
    chip_.put_dwords(at, copy(kProcess + 0x1000, kProcess + 0x40000, bytes));
    put(ib(at, 7));
  }
  // VM_L2_PROTECTION_FAULT_CNTL as the driver sets it by default.
  void faults_go_to_the_dummy_page() {
    chip_.registers[mi210_places::kHubs[1] + reg::hub::kFaultCntl] = 1 << 9;
  }
  std::uint64_t reported() { return chip_.get<std::uint64_t>(kReport); }

  LooseChip chip_;
  std::unique_ptr<Queue> queue_;
  std::uint64_t end_ = kRing;
};

TEST_F(SdmaRingTest, NothingHappensBeforeTheDoorbell) {
  put(fence(kData, 7));
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint32_t>(kData), 0u);
}

TEST_F(SdmaRingTest, PacketsAreExecutedAndTheReadPointerIsWrittenBackInBytes) {
  for (std::uint32_t i = 0; i < 5000; ++i) chip_.put(kData + i, static_cast<std::uint8_t>(i * 5 + i / 256));
  put(copy(kData, kOther + 3, 5000));
  put(fence(kOther + 0x8000, 9));
  EXPECT_EQ(go(), State::kIdle);
  EXPECT_EQ(std::memcmp(chip_.at(kData), chip_.at(kOther + 3), 5000), 0);
  EXPECT_EQ(chip_.get<std::uint32_t>(kOther + 0x8000), 9u);
  EXPECT_EQ(reported(), 44u);
  EXPECT_EQ(queue_->read_pointer(), 44u);
  EXPECT_EQ(queue_->write_pointer(), 44u);
  EXPECT_EQ(chip_.counters().sdma_packets, 2u);
  EXPECT_EQ(chip_.counters().sdma_bytes, 5000u);
  EXPECT_EQ(chip_.counters().user_packets, 0u);
}

TEST_F(SdmaRingTest, ATrapIsTheEnginesOwnInterrupt) {
  constexpr unsigned kClients[] = {8, 9, 1, 4, 5};
  for (unsigned engine = 0; engine < std::size(kClients); ++engine) {
    start(engine);
    chip_.interrupts.clear();
    put(trap(0x77));
    EXPECT_EQ(go(), State::kIdle);
    ASSERT_EQ(chip_.interrupts.size(), 1u);
    const InterruptEntry& entry = chip_.interrupts[0];
    EXPECT_EQ(entry.client, kClients[engine]);
    EXPECT_EQ(entry.source, 224u);
    EXPECT_EQ(entry.ring_id, 0u);
    EXPECT_EQ(entry.vmid, 0u);
    EXPECT_EQ(entry.pasid, 0u);
    EXPECT_TRUE(entry.mm_hub);
    EXPECT_EQ(entry.data[0], 0x77u);
    EXPECT_EQ(queue_->name(), "sdma" + std::to_string(engine));
  }
}

TEST_F(SdmaRingTest, RegistersAreThoseOfTheCard) {
  put({14 | 0xfu << 28, 0x1a123, 5});
  put({8 | 3u << 28, 0x6b000, 0, 3, 3, 10});
  EXPECT_EQ(go(), State::kWaiting);
  EXPECT_EQ(chip_.registers[0x1a123 * 4], 5u);
  chip_.registers[0x6b000] = 7;
  EXPECT_EQ(run(*queue_), State::kIdle);
}

TEST_F(SdmaRingTest, AnIbIsInTheMemoryOfItsVmidAndCanWaitThere) {
  std::uint64_t at = chip_.put_dwords(kProcess, copy(kProcess + 0x1ff0, kProcess + 0x4ff0, 64));
  at = chip_.put_dwords(at, poll_memory(kProcess + 0x6000, 1));
  at = chip_.put_dwords(at, fence(kProcess + 0x6004, 2));
  chip_.put(kProcess + 0x1ff0, std::uint64_t{0x1122334455667788});
  put(ib(kProcess, static_cast<std::uint32_t>(at - kProcess) / 4));
  put(trap(1));
  EXPECT_EQ(go(), State::kWaiting);
  EXPECT_EQ(chip_.get<std::uint64_t>(kProcess + 0x4ff0), 0x1122334455667788u);
  EXPECT_EQ(reported(), 0u);
  EXPECT_TRUE(chip_.interrupts.empty());
  chip_.put(kProcess + 0x6000, std::uint32_t{1});
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint32_t>(kProcess + 0x6004), 2u);
  EXPECT_EQ(chip_.interrupts.size(), 1u);
  EXPECT_EQ(reported(), 32u);
}

TEST_F(SdmaRingTest, AJobThatWritesARegisterStopsTheRingWithItsInterrupt) {
  chip_.put_dwords(kProcess, {14 | 0xfu << 28, 0x1a123, 5});
  put(ib(kProcess, 3));
  EXPECT_EQ(go(), State::kStopped);
  EXPECT_TRUE(chip_.registers.empty());
  EXPECT_TRUE(chip_.reported.empty());
  ASSERT_EQ(chip_.interrupts.size(), 1u);
  EXPECT_EQ(chip_.interrupts[0].client, 1u);
  EXPECT_EQ(chip_.interrupts[0].source, 247u);
  EXPECT_EQ(chip_.interrupts[0].vmid, LooseChip::kVmid);
}

TEST_F(SdmaRingTest, WithoutTheDummyPageAVmFaultInAnIbIsReportedAndStopsTheRing) {
  chip_.put_dwords(kProcess, copy(kProcess + 0x1000, kUnmapped, 64));
  put(ib(kProcess, 7));
  EXPECT_EQ(go(), State::kStopped);
  ASSERT_EQ(chip_.reported.size(), 1u);
  const Fault& fault = chip_.reported[0];
  EXPECT_EQ(fault.hub, Hub::kMm);
  EXPECT_EQ(fault.vmid, LooseChip::kVmid);
  EXPECT_EQ(fault.access, Access::kWrite);
  EXPECT_EQ(fault.address, kUnmapped);
  EXPECT_EQ(chip_.counters().queues_stopped, 1u);
  EXPECT_EQ(run(*queue_), State::kStopped);
  EXPECT_EQ(chip_.reported.size(), 1u);
  EXPECT_EQ(queue_->read_pointer(), 0u);
}

TEST_F(SdmaRingTest, AMalformedPacketStopsTheRingWithoutAVmFault) {
  put({0x7f});
  EXPECT_EQ(go(), State::kStopped);
  EXPECT_TRUE(chip_.reported.empty());
  EXPECT_EQ(chip_.counters().queues_stopped, 1u);
  EXPECT_NE(chip_.lines.back().find("sdma2: stopped: "), std::string::npos);
  EXPECT_NE(chip_.lines.back().find("0x7f"), std::string::npos);
}

TEST_F(SdmaRingTest, PageTableEntriesAreSeenByTheNextCopy) {
  chip_.put(kProcess, std::uint32_t{0xabcd});
  const std::uint64_t entry_at = kDriver + 0x403000 + 8 * (kUnmapped >> 12 & 0x1ff);
  put({12, low(entry_at), high(entry_at), low(entry::kValid | entry::kRead | entry::kWrite), 0, 0x280000, 0,
       0x1000, 0, 0});
  chip_.put_dwords(kProcess + 0x1000, copy(kProcess, kUnmapped, 4));
  put(ib(kProcess + 0x1000, 7));
  EXPECT_EQ(go(), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint32_t>(kDriver + 0x280000), 0xabcdu);
}

TEST_F(SdmaRingTest, FencesAreHeldAndReleasedOnDemand) {
  chip_.faults().fence = Faults::Fence::kHold;
  put(copy(kData, kOther, 64));
  put(fence(kData, 3));
  EXPECT_EQ(go(), State::kWaiting);
  EXPECT_EQ(queue_->read_pointer(), 28u);
  EXPECT_EQ(chip_.get<std::uint32_t>(kData), 0u);
  chip_.faults().fence = Faults::Fence::kPass;
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint32_t>(kData), 3u);
}

TEST_F(SdmaRingTest, ARingThatHangsAtItsFenceStaysThereAndOthersGoOn) {
  chip_.faults().fence = Faults::Fence::kHang;
  put(fence(kData, 3));
  EXPECT_EQ(go(), State::kWaiting);
  EXPECT_EQ(chip_.faults().fence, Faults::Fence::kPass);
  EXPECT_EQ(run(*queue_), State::kWaiting);
  EXPECT_EQ(chip_.get<std::uint32_t>(kData), 0u);
  const std::unique_ptr<Queue> hanging = std::move(queue_);
  start(3);
  put(fence(kData, 4));
  EXPECT_EQ(go(), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint32_t>(kData), 4u);
}

TEST_F(SdmaRingTest, WithTheDummyPageAnAccessThatFailedIsReportedOnceAndTheRingGoesOn) {
  faults_go_to_the_dummy_page();
  // The last mapped page, then one that is not: as a source (reads give 0) and as a target (writes are lost).
  const std::uint64_t before = kUnmapped - 0x1000;
  for (std::uint64_t i = 0; i < 0x2000; i += 8) chip_.put(kProcess + 0x1000 + i, ~i);
  for (std::uint64_t i = 0; i < 0x1000; i += 8) chip_.put(before + i, i + 1);
  std::uint64_t at = chip_.put_dwords(kProcess, copy(before, kProcess + 0x8000, 0x3000));
  at = chip_.put_dwords(at, copy(kProcess + 0x1000, before, 0x2000));
  at = chip_.put_dwords(at, {11u | 2u << 30, low(kUnmapped), 0, 7, 0x1000 - 1});
  at = chip_.put_dwords(at, fence(kUnmapped, 1));
  at = chip_.put_dwords(at, {10u | 47u << 25, low(kUnmapped), 0, 1, 0, 0, 0, 0});
  at = chip_.put_dwords(at, fence(kProcess + 0x7000, 2));
  chip_.put(kProcess + 0xa000, std::uint64_t{5});  // what the copy makes 0
  put(ib(kProcess, static_cast<std::uint32_t>(at - kProcess) / 4));
  put(trap(1));
  EXPECT_EQ(go(), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint64_t>(kProcess + 0x8ff8), 0xff9u);
  EXPECT_EQ(chip_.get<std::uint64_t>(kProcess + 0x9000), 0u);
  EXPECT_EQ(chip_.get<std::uint64_t>(kProcess + 0xa000), 0u);
  EXPECT_EQ(chip_.get<std::uint64_t>(before + 0xff8), ~std::uint64_t{0xff8});
  EXPECT_EQ(chip_.get<std::uint32_t>(kProcess + 0x7000), 2u);
  EXPECT_EQ(chip_.interrupts.size(), 1u);
  ASSERT_EQ(chip_.reported.size(), 5u);  // one a packet
  EXPECT_EQ(chip_.reported[0].access, Access::kRead);
  EXPECT_EQ(chip_.reported[1].access, Access::kWrite);
  for (const Fault& fault : chip_.reported) {
    EXPECT_EQ(fault.address, kUnmapped);
    EXPECT_EQ(fault.vmid, LooseChip::kVmid);
    EXPECT_EQ(fault.engine, 2u);
  }
  EXPECT_EQ(chip_.counters().queues_stopped, 0u);
}

TEST_F(SdmaRingTest, AnIbThatIsNotMappedIsNopsOnTheDummyPage) {
  faults_go_to_the_dummy_page();
  put(ib(kUnmapped, 32));
  put(fence(kData, 3));
  EXPECT_EQ(go(), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint32_t>(kData), 3u);
  EXPECT_FALSE(chip_.reported.empty());
}

TEST_F(SdmaRingTest, AFaultOnDemandIsTheNextCopyOrFillAndOnlyThat) {
  chip_.faults().sdma_fault = true;
  put(trap(1));
  put({2, low(kData), high(kData), 0, 5});  // page tables are written so
  put(fence(kData + 8, 6));
  put(copy(kData, kOther, 64));
  EXPECT_EQ(go(), State::kStopped);
  EXPECT_EQ(chip_.get<std::uint32_t>(kData), 5u);
  EXPECT_EQ(chip_.get<std::uint32_t>(kData + 8), 6u);
  EXPECT_FALSE(chip_.faults().sdma_fault);
  ASSERT_EQ(chip_.reported.size(), 1u);
  EXPECT_EQ(chip_.reported[0].address, kOther);
  EXPECT_EQ(chip_.reported[0].vmid, 0u);
  EXPECT_EQ(chip_.reported[0].hub, Hub::kMm);
  EXPECT_EQ(queue_->read_pointer(), 44u);
  EXPECT_EQ(reported(), 44u);
  start(3);
  put(copy(kData, kOther, 64));
  EXPECT_EQ(go(), State::kIdle);
}

TEST_F(SdmaRingTest, AFaultOnDemandInAnIbLosesTheCopyOnTheDummyPage) {
  faults_go_to_the_dummy_page();
  chip_.faults().sdma_fault = true;
  chip_.put(kProcess + 0x1000, std::uint32_t{7});
  std::uint64_t at = chip_.put_dwords(kProcess, copy(kProcess + 0x1000, kProcess + 0x2000, 64));
  at = chip_.put_dwords(at, copy(kProcess + 0x1000, kProcess + 0x3000, 64));
  put(ib(kProcess, static_cast<std::uint32_t>(at - kProcess) / 4));
  put(fence(kData, 3));
  EXPECT_EQ(go(), State::kIdle);
  ASSERT_EQ(chip_.reported.size(), 1u);
  EXPECT_EQ(chip_.reported[0].vmid, LooseChip::kVmid);
  EXPECT_EQ(chip_.reported[0].address, kProcess + 0x2000);
  EXPECT_EQ(chip_.get<std::uint32_t>(kProcess + 0x2000), 0u);
  EXPECT_EQ(chip_.get<std::uint32_t>(kProcess + 0x3000), 7u);
  EXPECT_EQ(chip_.get<std::uint32_t>(kData), 3u) << "the fence signals, as on hardware";
}

TEST_F(SdmaRingTest, HeldCopiesWaitInTheIbOfAProcessAndTheDriversDoNot) {
  chip_.faults().hold_copies = true;
  put(copy(kData, kOther, 64));
  EXPECT_EQ(go(), State::kIdle);
  chip_.put_dwords(kProcess, copy(kProcess + 0x1000, kProcess + 0x2000, 64));
  put(ib(kProcess, 7));
  put(fence(kData, 3));
  EXPECT_EQ(go(), State::kWaiting);
  EXPECT_NE(chip_.get<std::uint32_t>(kData), 3u);
  chip_.faults().hold_copies = false;
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint32_t>(kData), 3u);
}

TEST_F(SdmaRingTest, ASlowEngineMovesWhatTheClockAllows) {
  chip_.faults().sdma_bytes_per_s = 1'000'000;
  put_job(kProcess, 100'000);  // a tenth of a second
  put(fence(kData, 3));
  EXPECT_EQ(go(), State::kWaiting);
  const std::uint64_t first = chip_.counters().sdma_bytes;
  EXPECT_GT(first, 0u);
  EXPECT_LT(first, 100'000u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(run(*queue_), State::kWaiting);
  EXPECT_EQ(chip_.counters().sdma_bytes, first) << "time stands, and bytes move";
  std::uint64_t ticks = 0;
  State state = State::kWaiting;
  for (; state != State::kIdle && ticks < 100'000'000; ticks += kMillisecond) {
    chip_.now += kMillisecond;
    state = run(*queue_);
  }
  EXPECT_EQ(chip_.get<std::uint32_t>(kData), 3u);
  EXPECT_EQ(chip_.counters().sdma_bytes, 100'000u);
  EXPECT_GE(ticks, 8'000'000u);
  EXPECT_LE(ticks, 12'000'000u);
}

// Were what is moved counted for all rings, the one that is asked first would have all of it.
TEST_F(SdmaRingTest, ASlowEngineKeepsNoOtherOneWaiting) {
  chip_.faults().sdma_bytes_per_s = 1'000'000;
  put_job(kProcess, 200'000);  // a fifth of a second
  EXPECT_EQ(go(), State::kWaiting);
  const std::uint64_t ring = kDriver + 0x80000, done = kDriver + 0x84000;
  const std::unique_ptr<Queue> other = make_sdma_ring(chip_, {3, ring, kRingBytes, 0, 0});
  chip_.put_dwords(kProcess + 0x80, copy(kProcess + 0x80000, kProcess + 0x90000, 10'000));  // a hundredth
  other->ring(chip_.put_dwords(chip_.put_dwords(ring, ib(kProcess + 0x80, 7)), fence(done, 3)) - ring);
  for (unsigned ms = 0; ms < 50; ++ms, chip_.now += kMillisecond) {
    (void)run(*queue_);
    (void)run(*other);
  }
  EXPECT_EQ(chip_.get<std::uint32_t>(done), 3u) << "the second ring waits for the first one's copy";
  EXPECT_EQ(run(*queue_), State::kWaiting);
}

// Memory is cleared when a process ends and when it is given to one: who waits for that would wait for long.
TEST_F(SdmaRingTest, ASlowEngineIsNotSlowForTheDriver) {
  chip_.faults().sdma_bytes_per_s = 1;
  put(copy(kData, kOther, 100'000));
  put({11u | 2u << 30, low(kOther), high(kOther), 7, 0x1000 - 1});
  put(fence(kData, 3));
  EXPECT_EQ(go(), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint32_t>(kData), 3u);
  EXPECT_EQ(chip_.counters().sdma_bytes, 100'000u + 0x1000u);
}

TEST_F(SdmaRingTest, AnEngineThatIsSlowAgainOwesNothing) {
  chip_.faults().sdma_bytes_per_s = 1;
  put_job(kProcess, 100'000);
  EXPECT_EQ(go(), State::kWaiting);
  chip_.faults().sdma_bytes_per_s = 0;
  EXPECT_EQ(run(*queue_), State::kIdle);
  chip_.faults().sdma_bytes_per_s = 1'000'000;
  put_job(kProcess, 64);
  put(fence(kData, 3));
  EXPECT_EQ(go(), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint32_t>(kData), 3u);
}

// Linux 6.1 writes there what a process asks for: 4 MiB are 0 dwords.
TEST_F(SdmaRingTest, TheSizeOfAnIbHas20Bits) {
  std::uint64_t at = chip_.put_dwords(kProcess, copy(kProcess + 0x1000, kProcess + 0x2000, 64));
  at = chip_.put_dwords(at, fence(kProcess + 0x3000, 7));
  put(ib(kProcess, 1u << 20));
  put(fence(kData, 3));
  put(ib(kProcess, 1u << 20 | static_cast<std::uint32_t>(at - kProcess) / 4));
  put(fence(kData + 8, 4));
  EXPECT_EQ(go(), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint32_t>(kData), 3u);
  EXPECT_EQ(chip_.get<std::uint32_t>(kProcess + 0x3000), 7u);
  EXPECT_EQ(chip_.get<std::uint32_t>(kData + 8), 4u);
}

// ---- queues of processes

class UserQueueTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kRing = kProcess, kReport = kProcess + 0x2000, kWritten = kProcess + 0x3000,
                                 kData = kProcess + 0x4000;

  void map(UserRing::Kind kind, std::uint64_t read_pointer = 0) {
    UserRing ring;
    ring.kind = kind;
    ring.engine = 3;
    ring.base = kRing;
    ring.bytes = kRingBytes;
    ring.read_pointer = read_pointer;
    ring.read_pointer_report = kReport;
    ring.write_pointer_address = kWritten;
    ring.ring_id = 0x25;
    queue_ = make_user_queue(chip_, chip_.process(kind == UserRing::Kind::kSdma ? Hub::kMm : Hub::kGc), ring);
  }
  void written(std::uint64_t value) { chip_.put(kWritten, value); }

  LooseChip chip_;
  std::unique_ptr<Queue> queue_;
};

struct AqlPacket {
  std::uint16_t header = 0, setup = 0;
  std::uint32_t pad = 0;
  std::uint64_t body[6] = {};
  std::uint64_t completion = 0;
};

class AqlUserQueueTest : public UserQueueTest {
 protected:
  void put(std::uint64_t index, const AqlPacket& packet) { chip_.put(kRing + index % 64 * 64, packet); }
};

TEST_F(AqlUserQueueTest, WhatWasWrittenBeforeItWasMappedIsExecuted) {
  chip_.put(kData + 8, std::int64_t{2});
  put(0, {.header = 2, .completion = kData});
  put(1, {.header = 2, .completion = kData});
  written(2);
  map(UserRing::Kind::kAql);
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_EQ(chip_.get<std::int64_t>(kData + 8), 0);
  EXPECT_EQ(chip_.get<std::uint64_t>(kReport), 2u);  // packets
  EXPECT_EQ(queue_->read_pointer(), 32u);            // dwords
  EXPECT_EQ(queue_->write_pointer(), 32u);
  EXPECT_EQ(chip_.counters().user_packets, 2u);
}

TEST_F(AqlUserQueueTest, TheDoorbellNamesTheLastPacket) {
  map(UserRing::Kind::kAql);
  put(0, {.header = 2});
  put(1, {.header = 2});
  queue_->ring(0);
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint64_t>(kReport), 1u);
  queue_->ring(1);
  queue_->ring(0);  // of another thread, late
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint64_t>(kReport), 2u);
}

TEST_F(AqlUserQueueTest, ASignalWithAMailboxInterruptsForItsProcess) {
  chip_.put(kData + 8, std::int64_t{1});
  chip_.put(kData + 16, kData + 0x100);
  chip_.put(kData + 24, std::uint32_t{6});
  put(0, {.header = 2, .completion = kData});
  written(1);
  map(UserRing::Kind::kAql);
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint64_t>(kData + 0x100), 6u);
  ASSERT_EQ(chip_.interrupts.size(), 1u);
  const InterruptEntry& entry = chip_.interrupts[0];
  EXPECT_EQ(entry.client, 0x14u);
  EXPECT_EQ(entry.source, 181u);
  EXPECT_EQ(entry.ring_id, 0x25u);
  EXPECT_EQ(entry.vmid, LooseChip::kKfdVmid);
  EXPECT_EQ(entry.pasid, LooseChip::kPasid);
  EXPECT_FALSE(entry.mm_hub);
  EXPECT_EQ(entry.data[0], 6u);
}

TEST_F(AqlUserQueueTest, APacketThatIsNotPublishedAndABarrierWait) {
  chip_.put(kData + 8, std::int64_t{1});
  put(0, {.header = 1});
  put(1, {.header = 3, .body = {kData}});
  written(2);
  map(UserRing::Kind::kAql);
  EXPECT_EQ(run(*queue_), State::kWaiting);
  put(0, {.header = 2});
  EXPECT_EQ(run(*queue_), State::kWaiting);
  EXPECT_EQ(chip_.get<std::uint64_t>(kReport), 1u);
  chip_.put(kData + 8, std::int64_t{0});
  EXPECT_EQ(run(*queue_), State::kIdle);
}

TEST_F(AqlUserQueueTest, AQueueGoesOnWhereItsMqdSaysAlsoBeyond32BitsOfDwords) {
  const std::uint64_t read = (std::uint64_t{5} << 32 | 0xfffffff0) / 16, write = read + 3;  // carries over
  for (std::uint64_t i = read; i < write; ++i) put(i, {.header = 2});
  written(write);
  map(UserRing::Kind::kAql, static_cast<std::uint32_t>(read * 16));
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_EQ(chip_.counters().user_packets, 3u);
  EXPECT_EQ(chip_.get<std::uint64_t>(kReport), write);
}

TEST_F(AqlUserQueueTest, WithoutItsWritePointersPageItIsEmptyUntilTheDoorbell) {
  put(0, {.header = 2});
  written(1);
  chip_.unmap(kWritten);
  map(UserRing::Kind::kAql);
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_TRUE(chip_.reported.empty());
  queue_->ring(0);
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint64_t>(kReport), 1u);
}

TEST_F(AqlUserQueueTest, WithAWritePointerBehindItsReadPointerItIsEmptyUntilTheDoorbell) {
  written(0);  // the MQD is restored, the process' memory is not yet
  map(UserRing::Kind::kAql, 3 * 16);
  EXPECT_EQ(run(*queue_), State::kIdle);
  put(3, {.header = 2});
  queue_->ring(3);
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint64_t>(kReport), 4u);
}

TEST_F(AqlUserQueueTest, AVmFaultStopsItAndIsOfItsProcess) {
  for (const std::uint32_t hub : mi210_places::kHubs) chip_.registers[hub + reg::hub::kFaultCntl] = 1 << 9;
  put(0, {.header = 2, .completion = kUnmapped});
  written(1);
  map(UserRing::Kind::kAql);
  EXPECT_EQ(run(*queue_), State::kStopped);
  ASSERT_EQ(chip_.reported.size(), 1u);
  EXPECT_EQ(chip_.reported[0].hub, Hub::kGc);
  EXPECT_EQ(chip_.reported[0].vmid, LooseChip::kKfdVmid);
  EXPECT_EQ(chip_.reported[0].pasid, LooseChip::kPasid);
  EXPECT_EQ(chip_.reported[0].address, kUnmapped + 8);
  EXPECT_EQ(queue_->read_pointer(), 0u);
  EXPECT_EQ(chip_.counters().queues_stopped, 1u);
}

class Pm4UserQueueTest : public UserQueueTest {
 protected:
  static std::uint32_t header(std::uint32_t op, std::uint32_t dwords) {
    return 3u << 30 | (dwords - 2) << 16 | op << 8;
  }
};

TEST_F(Pm4UserQueueTest, TheReadPointerIsReportedAsAPlaceInTheRing) {
  const std::uint64_t dwords = kRingBytes / 4, start = 3 * dwords - 5;
  chip_.put_dwords(kRing + kRingBytes - 20, {header(0x37, 5), 5u << 8, low(kData), high(kData), 99});
  chip_.put_dwords(kRing,
                   {header(0x49, 8), 0x14, 1u << 29 | 2u << 24, low(kData + 8), high(kData + 8), 7, 0, 3});
  written(start + 5);
  map(UserRing::Kind::kPm4, start);
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint32_t>(kReport), 0u);
  queue_->ring(start + 13);
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint32_t>(kReport), 8u);
  EXPECT_EQ(queue_->read_pointer(), start + 13);
  EXPECT_EQ(chip_.get<std::uint32_t>(kData), 99u);
  EXPECT_EQ(chip_.get<std::uint32_t>(kData + 8), 7u);
  ASSERT_EQ(chip_.interrupts.size(), 1u);
  EXPECT_EQ(chip_.interrupts[0].source, 181u);
  EXPECT_EQ(chip_.interrupts[0].data[0], 3u);
}

TEST_F(Pm4UserQueueTest, RegistersAreNotAProcesses) {
  chip_.put_dwords(kRing, {header(0x37, 5), 0, 0x3045, 0, 8});
  written(5);
  map(UserRing::Kind::kPm4);
  EXPECT_EQ(run(*queue_), State::kStopped);
  EXPECT_TRUE(chip_.registers.empty());
  EXPECT_TRUE(chip_.reported.empty());
}

TEST_F(Pm4UserQueueTest, AnIbIsTheProcessesOwnMemory) {
  chip_.put_dwords(kData + 0x1000, {header(0x37, 5), 5u << 8, low(kData), high(kData), 12});
  chip_.put_dwords(kRing, {header(0x3f, 4), low(kData + 0x1000), high(kData + 0x1000), 5});
  written(4);
  map(UserRing::Kind::kPm4);
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint32_t>(kData), 12u);
}

class SdmaUserQueueTest : public UserQueueTest {};

TEST_F(SdmaUserQueueTest, CopiesFencesAndTraps) {
  chip_.put(kData, std::uint64_t{0x0123456789abcdef});
  std::uint64_t end = chip_.put_dwords(kRing, copy(kData, kData + 0x2000, 4096));
  written(end - kRing);
  map(UserRing::Kind::kSdma);
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint64_t>(kData + 0x2000), 0x0123456789abcdefu);
  end = chip_.put_dwords(end, fence(kData + 0x4000, 4));
  end = chip_.put_dwords(end, trap(4));
  queue_->ring(end - kRing);
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_EQ(chip_.get<std::uint64_t>(kReport), end - kRing);
  ASSERT_EQ(chip_.interrupts.size(), 1u);
  const InterruptEntry& entry = chip_.interrupts[0];
  EXPECT_EQ(entry.client, 4u);  // of engine 3
  EXPECT_EQ(entry.source, 224u);
  EXPECT_EQ(entry.ring_id, 0x25u);
  EXPECT_EQ(entry.vmid, LooseChip::kKfdVmid);
  EXPECT_EQ(entry.pasid, LooseChip::kPasid);
  EXPECT_TRUE(entry.mm_hub);
  EXPECT_EQ(entry.data[0], 4u);
  EXPECT_EQ(chip_.counters().user_packets, 3u);
  EXPECT_EQ(chip_.counters().sdma_packets, 0u);
  EXPECT_EQ(chip_.counters().sdma_bytes, 4096u);
}

TEST_F(SdmaUserQueueTest, WhatIsTheDriversIsRefused) {
  for (const Dwords& packet :
       {Dwords{14 | 0xfu << 28, 0x10, 7}, Dwords{12, low(kData), high(kData), 1, 0, 0, 0, 0, 0, 0}}) {
    const std::uint64_t end = chip_.put_dwords(kRing, packet);
    written(end - kRing);
    map(UserRing::Kind::kSdma);
    EXPECT_EQ(run(*queue_), State::kStopped);
  }
  EXPECT_TRUE(chip_.registers.empty());
  EXPECT_TRUE(chip_.reported.empty());
}

TEST_F(SdmaUserQueueTest, FaultsOnDemandOfTheDriversRingsAreNotItsOwn) {
  chip_.faults().fence = Faults::Fence::kHold;
  chip_.faults().sdma_fault = true;
  written(chip_.put_dwords(kRing, fence(kData, 4)) - kRing);
  map(UserRing::Kind::kSdma);
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_TRUE(chip_.faults().sdma_fault);
}

TEST_F(SdmaUserQueueTest, ItGoesAsSlowlyAsItsEngine) {
  chip_.faults().sdma_bytes_per_s = 1'000'000;
  written(chip_.put_dwords(kRing, copy(kData, kData + 0x40000, 100'000)) - kRing);
  map(UserRing::Kind::kSdma);
  EXPECT_EQ(run(*queue_), State::kWaiting);
  EXPECT_LT(chip_.counters().sdma_bytes, 100'000u);
  chip_.faults().sdma_bytes_per_s = 0;
  EXPECT_EQ(run(*queue_), State::kIdle);
  EXPECT_EQ(chip_.counters().sdma_bytes, 100'000u);
}

TEST_F(SdmaUserQueueTest, ADoorbellThatMakesNoSenseStopsIt) {
  map(UserRing::Kind::kSdma);
  queue_->ring(kRingBytes + 4);
  EXPECT_EQ(run(*queue_), State::kStopped);
  EXPECT_TRUE(chip_.reported.empty());
}

TEST_F(SdmaUserQueueTest, AReadPointerReportThatIsNotMappedStopsIt) {
  written(chip_.put_dwords(kRing, trap(4)) - kRing);
  chip_.unmap(kReport);
  map(UserRing::Kind::kSdma);
  EXPECT_EQ(run(*queue_), State::kStopped);
  ASSERT_EQ(chip_.reported.size(), 1u);
  EXPECT_EQ(chip_.reported[0].address, kReport);
  EXPECT_TRUE(chip_.interrupts.empty());
}

}  // namespace
}  // namespace sluice::card::tests
