// SPDX-License-Identifier: MIT
// The packet decoders by themselves, on plain memory: what each packet does, what is refused and changes
// nothing, what waits and goes on, also in an indirect buffer.
#include "packets/packets.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "packets_kit.h"

namespace vamdgpu::tests {
namespace {

using Dwords = std::vector<std::uint32_t>;

constexpr std::uint64_t kRing = FlatMemory::kBase, kData = kRing + 0x10000, kOther = kRing + 0x20000,
                        kIb = kRing + 0x5000, kIb2 = kRing + 0x6000, kUnmapped = kRing + 0x10000000;
constexpr std::uint64_t kRingBytes = 1024;

class PacketsTest : public ::testing::Test {
 protected:
  PacketsTest() { renew(); }
  void renew() {
    ring_ = {};
    ring_.ring = kRing;
    ring_.ring_bytes = kRingBytes;
  }

  // Bytes that a pointer counts, and one packet.
  virtual unsigned unit() const = 0;
  virtual pkt_result step() = 0;

  void put(const Dwords& dwords) {
    ring_.write = memory_.put_ring(kRing, kRingBytes, unit() * ring_.write, dwords) / unit();
  }
  // Until something else than PKT_DONE.
  pkt_result run() {
    pkt_result result = PKT_DONE;
    for (int i = 0; i < 1000 && result == PKT_DONE; ++i) result = step();
    return result;
  }
  void expect_done() {
    EXPECT_EQ(run(), PKT_IDLE) << why();
    EXPECT_EQ(ring_.read, ring_.write);
    EXPECT_EQ(owner_.reported, ring_.read);
  }
  // `dwords` alone in a new ring.
  void expect_fault(const Dwords& dwords, pkt_fault fault) {
    renew();
    put(dwords);
    const std::vector<std::uint8_t> before = memory_.all();
    owner_.interrupts.clear();
    EXPECT_EQ(run(), PKT_FAULT) << std::hex << dwords[0];
    EXPECT_EQ(ring_.fault, fault) << std::hex << dwords[0] << " " << why();
    EXPECT_EQ(ring_.fault_header, dwords[0]);
    EXPECT_EQ(ring_.read, 0u);
    EXPECT_TRUE(owner_.interrupts.empty());
    EXPECT_EQ(memory_.all(), before) << "a refused packet changed memory";
    EXPECT_EQ(step(), PKT_FAULT) << "a queue with a fault goes on";
  }
  std::uint32_t data(std::uint64_t offset = 0) { return memory_.get<std::uint32_t>(kData + offset); }
  std::string why() const { return ring_.fault_why != nullptr ? ring_.fault_why : ""; }

  FlatMemory memory_;
  Owner owner_{memory_};
  pkt_queue ring_{};
  std::uint64_t budget_ = 1 << 20;
};

// ---- SDMA

class SdmaPackets : public PacketsTest {
 protected:
  unsigned unit() const override { return 1; }
  pkt_result step() override { return pkt_sdma_step(&ring_, memory_.c(), &owner_.table, &rules_, &budget_); }
  static Dwords copy(std::uint64_t from, std::uint64_t to, std::uint32_t bytes) {
    return {1, bytes - 1, 0, low(from), high(from), low(to), high(to)};
  }
  static Dwords fence(std::uint64_t to, std::uint32_t value) { return {5, low(to), high(to), value}; }
  static Dwords ib(std::uint64_t at, std::uint32_t dwords, std::uint32_t vmid = 3) {
    return {4 | vmid << 16, low(at), high(at), dwords, 0, 0};
  }
  static Dwords poll_memory(std::uint32_t function, std::uint64_t at, std::uint32_t reference,
                            std::uint32_t mask = 0xffffffff) {
    return {8 | function << 28 | 1u << 31, low(at), high(at), reference, mask, 10};
  }

  pkt_sdma_rules rules_{PKT_SDMA_KERNEL, 1 << 22, 1, 0, 0};
};

TEST_F(SdmaPackets, AnEmptyRingIsIdle) {
  EXPECT_EQ(step(), PKT_IDLE);
}

TEST_F(SdmaPackets, CopyWriteFillFenceAndTrap) {
  for (std::uint32_t i = 0; i < 4000; ++i)
    *memory_.at(kData + i) = static_cast<std::uint8_t>(3 * i + i / 256);
  put(copy(kData + 1, kOther + 2, 3000));
  put({2, low(kOther + 0x4000), high(kOther + 0x4000), 2, 7, 8, 9});
  put({11u | 2u << 30, low(kOther + 0x5000), high(kOther + 0x5000), 0x04030201, 40 - 1});
  put(fence(kOther + 0x6000, 0x1234));
  put({6, 0xf0000077});
  expect_done();
  EXPECT_EQ(std::memcmp(memory_.at(kOther + 2), memory_.at(kData + 1), 3000), 0);
  EXPECT_EQ(*memory_.at(kOther + 3002), 0);
  EXPECT_EQ(memory_.get<std::uint32_t>(kOther + 0x4000), 7u);
  EXPECT_EQ(memory_.get<std::uint32_t>(kOther + 0x4008), 9u);
  EXPECT_EQ(memory_.get<std::uint32_t>(kOther + 0x5024), 0x04030201u);
  EXPECT_EQ(memory_.get<std::uint32_t>(kOther + 0x5028), 0u);
  EXPECT_EQ(memory_.get<std::uint32_t>(kOther + 0x6000), 0x1234u);
  ASSERT_EQ(owner_.interrupts.size(), 1u);
  EXPECT_EQ(owner_.interrupts[0].context, 0x77u);  // 28 bits
  EXPECT_EQ(owner_.interrupts[0].reported, ring_.read);
}

TEST_F(SdmaPackets, PageTableEntriesCountUpAndHaveTheirFlags) {
  put({12, low(kData), high(kData), 0x71, 0x80000000, low(0x123456000), high(0x123456000), 0x1000, 0, 99});
  budget_ = 100 * 8;
  expect_done();
  for (std::uint64_t i = 0; i < 100; ++i)
    EXPECT_EQ(memory_.get<std::uint64_t>(kData + 8 * i), (0x123456000 + 0x1000 * i) | 0x8000000000000071);
  EXPECT_EQ(memory_.get<std::uint64_t>(kData + 800), 0u);
  EXPECT_EQ(budget_, 0u);
}

TEST_F(SdmaPackets, ALongPacketGoesOnWhenThereIsBudgetAgain) {
  for (std::uint32_t i = 0; i < 4096; ++i) *memory_.at(kData + i) = static_cast<std::uint8_t>(i * 7);
  for (const int kind : {0, 1, 2, 3}) {
    SCOPED_TRACE(kind);
    std::memset(memory_.at(kOther), 0, 4096);
    const std::uint64_t before = ring_.read;
    if (kind == 0) put(copy(kData, kOther, 800));
    if (kind == 1) put({11u | 2u << 30, low(kOther), high(kOther), 0xa1b2c3d4, 800 - 1});
    if (kind == 2) put({12, low(kOther), high(kOther), 0, 0, 1, 0, 1, 0, 99});
    if (kind == 3) {
      Dwords write{2, low(kOther), high(kOther), 199};
      for (std::uint32_t i = 0; i < 200; ++i) write.push_back(i);
      put(write);
    }
    unsigned steps = 0;
    pkt_result result = PKT_MORE;
    for (; result == PKT_MORE && steps < 1000; ++steps) {
      EXPECT_EQ(ring_.read, before);
      budget_ = 99;  // neither of dwords nor of entries
      result = step();
    }
    EXPECT_EQ(result, PKT_DONE) << why();
    EXPECT_GE(steps, 800u / 99);
    for (std::uint32_t i = 0; i < 800; i += 4) {
      const auto value = memory_.get<std::uint32_t>(kOther + i);
      if (kind == 0) {
        ASSERT_EQ(value, memory_.get<std::uint32_t>(kData + i));
      }
      if (kind == 1) {
        ASSERT_EQ(value, 0xa1b2c3d4u);
      }
      if (kind == 2) {
        ASSERT_EQ(value, i % 8 == 0 ? i / 8 + 1 : 0);
      }
      if (kind == 3) {
        ASSERT_EQ(value, i / 4);
      }
    }
    EXPECT_EQ(memory_.get<std::uint32_t>(kOther + 800), 0u);
  }
}

TEST_F(SdmaPackets, APollOfMemoryWaitsForEachFunction) {
  struct Case {
    std::uint32_t function, value;
    bool met;
  };
  const Case cases[] = {{0, 9, true},  {1, 4, true},  {1, 5, false}, {2, 5, true},  {2, 6, false},
                        {3, 5, true},  {3, 4, false}, {4, 4, true},  {4, 5, false}, {5, 5, true},
                        {5, 4, false}, {6, 6, true},  {6, 5, false}};
  for (const Case& c : cases) {
    memory_.put(kData, c.value | 0xab00u);
    put(poll_memory(c.function, kData, 5, 0xff));
    EXPECT_EQ(step(), c.met ? PKT_DONE : PKT_WAITS) << c.function << " " << c.value;
    ring_.read = ring_.write;
  }
}

TEST_F(SdmaPackets, APollOfARegisterWaitsAndAFlushWritesItsRegisterOnce) {
  put({8 | 3u << 28, 0x1000 * 4, 0, 1, 1, 10});
  EXPECT_EQ(step(), PKT_WAITS);
  owner_.registers[0x1000] = 3;
  EXPECT_EQ(step(), PKT_DONE);
  put({8 | 3u << 28 | 1u << 26, 0x3000 * 4, 0x2000 * 4, 4, 4, 10});
  EXPECT_EQ(step(), PKT_WAITS);
  EXPECT_EQ(step(), PKT_WAITS);
  EXPECT_EQ(owner_.register_writes, 1u);
  EXPECT_EQ(owner_.registers[0x2000], 4u);
  owner_.registers[0x3000] = 4;
  EXPECT_EQ(step(), PKT_DONE);
  EXPECT_EQ(owner_.register_writes, 1u);
}

TEST_F(SdmaPackets, WithoutRegistersAFlushIsNothingAndAPollIsRefused) {
  owner_.table.read_register = nullptr;
  owner_.table.write_register = nullptr;
  put({8 | 3u << 28 | 1u << 26, 0x3000 * 4, 0x2000 * 4, 4, 4, 10});
  put({8, 0, 0x80000000, 0, 0, 0});
  expect_done();
  expect_fault({8 | 3u << 28, 0x1000 * 4, 0, 1, 1, 10}, PKT_BAD_PACKET);
  expect_fault({14 | 0xfu << 28, 0x10, 7}, PKT_BAD_PACKET);
}

TEST_F(SdmaPackets, RegistersTimestampsAndAtomics) {
  memory_.put(kData, std::uint64_t{40});
  put({14 | 0xfu << 28, 0x1a123, 77});
  put({13 | 2u << 8, low(kData + 8), high(kData + 8)});
  put({10 | 47u << 25, low(kData), high(kData), 0xffffffff, 0xffffffff, 0, 0, 0});
  expect_done();
  EXPECT_EQ(owner_.registers[0x1a123], 77u);
  EXPECT_EQ(memory_.get<std::uint64_t>(kData + 8), Owner::kClock);
  EXPECT_EQ(memory_.get<std::uint64_t>(kData), 39u);
}

TEST_F(SdmaPackets, AConditionSkipsWhatFollows) {
  memory_.put(kData, std::uint32_t{1});
  for (const std::uint32_t value : {1u, 2u}) {
    put({9, low(kData), high(kData), value, 4});
    put(fence(kData + 16, value));
  }
  expect_done();
  EXPECT_EQ(data(16), 1u);
}

TEST_F(SdmaPackets, AnIbIsExecutedInItsVmidAndTheRingGoesOnAfterIt) {
  memory_.put_dwords(kIb, {0 | 2u << 16, 99, 99});
  memory_.put_dwords(kIb + 12, fence(kData, 5));
  put(ib(kIb, 7));
  put(fence(kData + 4, 6));
  EXPECT_EQ(step(), PKT_DONE);  // the call
  EXPECT_EQ(owner_.reported, 0u);
  EXPECT_EQ(step(), PKT_DONE);
  EXPECT_EQ(ring_.read, 0u) << "the ring stands at the call until the IB has ended";
  EXPECT_EQ(step(), PKT_DONE);
  EXPECT_EQ(ring_.read, 24u);
  EXPECT_EQ(owner_.reported, 24u);
  expect_done();
  EXPECT_EQ(data(0), 5u);
  EXPECT_EQ(data(4), 6u);
  EXPECT_EQ(owner_.vmids, std::vector<std::uint32_t>(owner_.vmids.size(), 3));
}

TEST_F(SdmaPackets, APollInAnIbWaitsAndGoesOnThere) {
  memory_.put_dwords(kIb, fence(kData, 1));
  memory_.put_dwords(kIb + 16, poll_memory(3, kData + 64, 9));
  memory_.put_dwords(kIb + 40, fence(kData, 2));
  put(ib(kIb, 14));
  EXPECT_EQ(run(), PKT_WAITS);
  EXPECT_EQ(data(), 1u);
  EXPECT_EQ(run(), PKT_WAITS);
  memory_.put(kData + 64, std::uint32_t{9});
  memory_.put(kData, std::uint32_t{77});  // what was done is not done again
  EXPECT_EQ(step(), PKT_DONE);
  EXPECT_EQ(data(), 77u);
  expect_done();
  EXPECT_EQ(data(), 2u);
}

TEST_F(SdmaPackets, NothingBehindTheEndOfAnIbIsRead) {
  const std::uint64_t last = FlatMemory::kEnd - 32;
  memory_.put_dwords(last, {0 | 3u << 16, 0, 0, 0});
  memory_.put_dwords(last + 16, fence(kData, 5));
  put(ib(last, 8));
  expect_done();
  EXPECT_EQ(data(), 5u);
}

TEST_F(SdmaPackets, AnEmptyIbIsNothing) {
  put(ib(kUnmapped & ~31ull, 0));
  expect_done();
}

TEST_F(SdmaPackets, PacketsGoOverTheEndOfTheRing) {
  for (std::uint64_t at = 0; at < 10 * kRingBytes; at = ring_.write) {
    Dwords write{2, low(kData), high(kData), 12};
    for (std::uint32_t i = 0; i < 13; ++i) write.push_back(static_cast<std::uint32_t>(at) + i);
    put(write);
    expect_done();
    for (std::uint32_t i = 0; i < 13; ++i) ASSERT_EQ(data(4 * i), at + i);
  }
}

TEST_F(SdmaPackets, AHeldFenceWaits) {
  owner_.holds = true;
  put(copy(kData + 64, kOther, 64));
  put(fence(kData, 1));
  EXPECT_EQ(run(), PKT_WAITS);
  EXPECT_EQ(data(), 0u);
  owner_.holds = false;
  expect_done();
  EXPECT_EQ(data(), 1u);
}

TEST_F(SdmaPackets, AQueueMayHoldOnlyWhatItsRulesAllow) {
  const std::vector<Dwords> privileged = {{14 | 0xfu << 28, 0x10, 7},
                                          {12, low(kData), high(kData), 1, 0, 0, 0, 0, 0, 0},
                                          {13 | 1u << 8, low(kData), high(kData)},
                                          {9, low(kData), high(kData), 1, 1},
                                          {4, low(kIb), high(kIb), 1, 0, 0}};
  rules_.allowed = PKT_SDMA_USER;
  for (const Dwords& packet : privileged) expect_fault(packet, PKT_BAD_PACKET);
}

TEST_F(SdmaPackets, MalformedPacketsAreRefusedAndChangeNothing) {
  const std::uint32_t lo = low(kData), hi = high(kData);
  const std::vector<Dwords> bad = {
      {0x7f},                                               // unknown
      {3},                                                  // a gap in the table
      {7, 0, 0, 0, 0, 0, 0, 0, 0, 0},                       // semaphore
      {1, 0xfff, 0, lo, hi, lo},                            // short of a dword
      {1, 1 << 22, 0, lo, hi, lo, hi},                      // above the limit
      {1, 0xc0000000, 0, lo, hi, lo, hi},                   // count's upper bits
      {1u | 4u << 8, 0xfff, 0, lo, hi, lo, hi},             // not linear
      {1u | 1u << 25, 0xfff, 0, lo, hi, lo, hi},            // backwards
      {1, 0xfff, 1u << 16, lo, hi, lo, hi},                 // swap
      {2, lo, hi, 9, 1},                                    // data beyond the end
      {2, lo + 2, hi, 0, 1},                                // not aligned
      {2u | 1u << 8, lo, hi, 0, 1},                         // tiled
      {2, lo, hi, 1u << 20, 1},                             // count's upper bits
      {5, lo + 1, hi, 1},                                   // fence not aligned
      {5u | 1u << 8, lo, hi, 1},                            // conditional fence
      {6u | 1u << 8, 1},                                    // trap of another kind
      {8u | 7u << 28 | 1u << 31, lo, hi, 0, 0, 0},          // function 7
      {8u | 1u << 31, lo + 2, hi, 0, 0, 0},                 // not aligned
      {8u | 1u << 31 | 1u << 26, lo, hi, 0, 0, 0},          // flush of memory
      {8u | 1u << 8, lo, hi, 0, 0, 0},                      // another poll
      {9, lo, hi, 1, 9},                                    // skips beyond the end
      {9, lo, hi, 1, 1u << 14},                             // count's upper bits
      {10u | 40u << 25, lo, hi, 1, 0, 0, 0, 0},             // another atomic
      {10u | 47u << 25, lo + 4, hi, 1, 0, 0, 0, 0},         // not aligned
      {10u | 47u << 25 | 1u << 16, lo, hi, 1, 0, 0, 0, 0},  // in a loop
      {11u | 1u << 30, lo, hi, 9, 63},                      // fill size
      {11u | 2u << 30, lo + 2, hi, 9, 63},                  // not aligned
      {11u | 2u << 30, lo, hi, 9, 64},                      // no whole dwords
      {12u | 1u << 8, lo, hi, 1, 0, 0, 0, 0, 0, 0},         // copies entries
      {12, lo + 4, hi, 1, 0, 0, 0, 0, 0, 0},                // not aligned
      {12, lo, hi, 1, 0, 0, 0, 0, 0, 1u << 19},             // count's upper bits
      {12, lo, hi, 1, 0, 0, 0, 0, 0},                       // short of a dword
      {13, lo, hi},                                         // sets the clock
      {13u | 1u << 8, lo + 4, hi},                          // not aligned
      {14u | 1u << 28, 0x10, 7},                            // one byte of a register
      {14u | 0xfu << 28, 1u << 18, 7},                      // no such register
      {4, low(kIb) + 4, high(kIb), 1, 0, 0},                // IB not aligned
      {4, low(kIb), high(kIb), 1u << 20, 0, 0},             // its size's upper bits
      {0u | 5u << 16},                                      // NOP beyond the end
  };
  for (const Dwords& packet : bad) expect_fault(packet, PKT_BAD_PACKET);
}

TEST_F(SdmaPackets, AddressesThatAreNotMappedAreAFault) {
  const std::vector<Dwords> bad = {
      copy(kData, kUnmapped, 64),
      copy(kUnmapped, kData, 64),
      copy(kData, FlatMemory::kReadOnly, 64),
      fence(kUnmapped, 1),
      {2, low(kUnmapped), high(kUnmapped), 0, 1},
      {11u | 2u << 30, low(kUnmapped), high(kUnmapped), 9, 63},
      poll_memory(3, kUnmapped, 0),
      {9, low(kUnmapped), high(kUnmapped), 1, 0},
      {10u | 47u << 25, low(kUnmapped), high(kUnmapped), 1, 0, 0, 0, 0},
      {12, low(kUnmapped), high(kUnmapped), 1, 0, 0, 0, 0, 0, 0},
      {13u | 1u << 8, low(kUnmapped), high(kUnmapped)},
      {4u | Owner::kNoMemory << 16, low(kIb), high(kIb), 4, 0, 0},
  };
  for (const Dwords& packet : bad) expect_fault(packet, PKT_BAD_ADDRESS);
}

TEST_F(SdmaPackets, AnIbInAnIbAndAnIbThatIsNotMappedAreFaults) {
  memory_.put_dwords(kIb, ib(kIb2, 4));
  put(ib(kIb, 6));
  EXPECT_EQ(run(), PKT_FAULT);
  EXPECT_EQ(ring_.fault, PKT_BAD_PACKET);
  EXPECT_EQ(ring_.fault_at, kIb);
  EXPECT_EQ(ring_.read, 0u);
  renew();
  put(ib(kUnmapped, 6));
  EXPECT_EQ(run(), PKT_FAULT);
  EXPECT_EQ(ring_.fault, PKT_BAD_ADDRESS);
  EXPECT_EQ(ring_.fault_va, kUnmapped);
}

TEST_F(SdmaPackets, PointersThatMakeNoSenseAreAFault) {
  struct Case {
    std::uint64_t read, write;
  };
  for (const Case& c : {Case{8, 4}, Case{0, kRingBytes + 4}, Case{0, 6}, Case{2, 4}, Case{0, ~3ull}}) {
    renew();
    ring_.read = c.read;
    ring_.write = c.write;
    EXPECT_EQ(step(), PKT_FAULT);
    EXPECT_EQ(ring_.fault, PKT_BAD_POINTER) << c.read << " " << c.write;
  }
  ring_ = {};
  ring_.write = 4;
  EXPECT_EQ(step(), PKT_FAULT);  // no ring
}

TEST_F(SdmaPackets, AReadPointerThatCannotBeWrittenBackStopsTheQueueAtThePacket) {
  owner_.report_fails = true;
  put({6, 1});
  EXPECT_EQ(run(), PKT_FAULT);
  EXPECT_EQ(ring_.fault, PKT_BAD_ADDRESS);
  EXPECT_EQ(ring_.read, 0u);
  EXPECT_TRUE(owner_.interrupts.empty());
}

TEST_F(SdmaPackets, ARefusedRegisterStopsTheQueue) {
  expect_fault({14 | 0xfu << 28, Owner::kBadRegister, 7}, PKT_REFUSED);
}

// ---- PM4

class Pm4Packets : public PacketsTest {
 protected:
  unsigned unit() const override { return 4; }
  pkt_result step() override { return pkt_pm4_step(&ring_, memory_.c(), &owner_.table, &rules_, &budget_); }
  static Dwords write_data(std::uint64_t to, std::uint32_t value) {
    return {pm4_header(0x37, 5), 5u << 8 | 1u << 20, low(to), high(to), value};
  }
  static Dwords indirect(std::uint64_t at, std::uint32_t dwords, std::uint32_t flags = 3u << 24) {
    return {pm4_header(0x3f, 4), low(at), high(at), dwords | flags};
  }

  pkt_pm4_rules rules_{PKT_PM4_SYNC | PKT_PM4_SHADERS};
};

TEST_F(Pm4Packets, NopsOfAllKindsAndSkippedPackets) {
  put({0xffff1000, 2u << 30, pm4_header(0x10, 4), 1, 2, 3});
  put({pm4_header(0x58, 7), 0, 0, 0, 0, 0, 0});
  put({pm4_header(0x76, 4), 0x20c, 1, 2});
  put({pm4_header(0x15, 5), 1, 1, 1, 5});
  put({pm4_header(0x28, 3), 0, 0});
  put({pm4_header(0x46, 2), 0});
  put({pm4_header(0x68, 3), 1, 2});
  put({pm4_header(0xd7, 2), 0});
  expect_done();
  EXPECT_TRUE(owner_.foreign.empty());
  EXPECT_TRUE(owner_.registers.empty());
}

TEST_F(Pm4Packets, WriteDataGoesToMemoryOrToRegisters) {
  put({pm4_header(0x37, 7), 5u << 8, low(kData), high(kData), 1, 2, 3});
  put({pm4_header(0x37, 6), 0, 0x3045, 0, 8, 9});
  put({pm4_header(0x37, 6), 1u << 16, 0x3050, 0, 8, 9});  // all to the same
  put({pm4_header(0x79, 4), 0x40, 5, 6});
  expect_done();
  EXPECT_EQ(data(8), 3u);
  EXPECT_EQ(owner_.registers, (std::map<std::uint32_t, std::uint32_t>{
                                  {0x3045, 8}, {0x3046, 9}, {0x3050, 9}, {0xc040, 5}, {0xc041, 6}}));
}

TEST_F(Pm4Packets, ReleaseMemWritesThenInterrupts) {
  put({pm4_header(0x49, 8), 0x14, 1u << 29, low(kData), high(kData), 0x11, 0x22, 0});
  put({pm4_header(0x49, 8), 0x14, 2u << 29 | 2u << 24, low(kData + 8), high(kData + 8), 0x33, 0x44, 0x55});
  put({pm4_header(0x49, 8), 0x14, 3u << 29, low(kData + 16), high(kData + 16), 0, 0, 0});
  put({pm4_header(0x49, 8), 0x14, 1u << 24, 0, 0, 0, 0, 0x66});
  put({pm4_header(0x49, 8), 0x14, 4u << 29, low(kData + 24), high(kData + 24), 0, 0, 0});
  expect_done();
  EXPECT_EQ(memory_.get<std::uint64_t>(kData), 0x11u);
  EXPECT_EQ(memory_.get<std::uint64_t>(kData + 8), 0x4400000033u);
  EXPECT_EQ(memory_.get<std::uint64_t>(kData + 16), Owner::kClock);
  EXPECT_EQ(memory_.get<std::uint64_t>(kData + 24), Owner::kClock);
  ASSERT_EQ(owner_.interrupts.size(), 2u);
  EXPECT_EQ(owner_.interrupts[0].context, 0x55u);
  EXPECT_EQ(owner_.interrupts[0].reported, 16u);
  EXPECT_EQ(owner_.interrupts[1].context, 0x66u);
}

TEST_F(Pm4Packets, ReleaseMemThatWaitsForItsWriteRaisesNoInterrupt) {
  put({pm4_header(0x49, 8), 0x14, 1u << 29 | 3u << 24, low(kData), high(kData), 0x11, 0, 0x77});
  expect_done();
  EXPECT_EQ(data(), 0x11u);
  EXPECT_TRUE(owner_.interrupts.empty());
}

TEST_F(Pm4Packets, AHeldFenceWaits) {
  owner_.holds = true;
  put({pm4_header(0x49, 8), 0x14, 1u << 29 | 2u << 24, low(kData), high(kData), 7, 0, 0});
  EXPECT_EQ(run(), PKT_WAITS);
  EXPECT_EQ(data(), 0u);
  EXPECT_TRUE(owner_.interrupts.empty());
  owner_.holds = false;
  expect_done();
  EXPECT_EQ(data(), 7u);
}

TEST_F(Pm4Packets, WaitRegMemWaitsForMemoryAndForRegisters) {
  put({pm4_header(0x3c, 7), 3 | 1u << 4, low(kData), high(kData), 0x15, 0xf, 10});
  EXPECT_EQ(run(), PKT_WAITS);
  memory_.put(kData, std::uint32_t{0xa5});
  expect_done();
  put({pm4_header(0x3c, 7), 5, 0x1000, 0, 4, 0xff, 10});
  EXPECT_EQ(run(), PKT_WAITS);
  owner_.registers[0x1000] = 4;
  expect_done();
  // Writes one register, once, then waits for the other: the whole request is the reference (a TLB flush).
  put({pm4_header(0x3c, 7), 3 | 1u << 6, 0x2000, 0x2001, 0x1f80001, 1, 10});
  EXPECT_EQ(run(), PKT_WAITS);
  EXPECT_EQ(run(), PKT_WAITS);
  EXPECT_EQ(owner_.register_writes, 1u);
  EXPECT_EQ(owner_.registers[0x2000], 0x1f80001u);
  owner_.registers[0x2001] = 0xffff;
  expect_done();
}

TEST_F(Pm4Packets, CopyDataGoesBetweenRegistersMemoryAndTheClock) {
  owner_.registers[0x10] = 0xa;
  owner_.registers[0x11] = 0xb;
  memory_.put(kData, std::uint64_t{0xc0000000d});
  put({pm4_header(0x40, 6), 5u << 8, 0x10, 0, low(kOther), high(kOther)});
  put({pm4_header(0x40, 6), 5u << 8 | 1u << 16, 0x10, 0, low(kOther + 8), high(kOther + 8)});
  put({pm4_header(0x40, 6), 1 | 1u << 16, low(kData), high(kData), 0x20, 0});
  put({pm4_header(0x40, 6), 5 | 5u << 8, 77, 0, low(kOther + 16), high(kOther + 16)});
  put({pm4_header(0x40, 6), 9 | 5u << 8 | 1u << 16, 0, 0, low(kOther + 24), high(kOther + 24)});
  expect_done();
  EXPECT_EQ(memory_.get<std::uint64_t>(kOther), 0xau);
  EXPECT_EQ(memory_.get<std::uint64_t>(kOther + 8), 0xb0000000aull);
  EXPECT_EQ(owner_.registers[0x20], 0xdu);
  EXPECT_EQ(owner_.registers[0x21], 0xcu);
  EXPECT_EQ(memory_.get<std::uint32_t>(kOther + 16), 77u);
  EXPECT_EQ(memory_.get<std::uint64_t>(kOther + 24), Owner::kClock);
}

TEST_F(Pm4Packets, AConditionSkipsWhatFollows) {
  for (const std::uint32_t value : {1u, 0u}) {
    memory_.put(kData, value);
    put({pm4_header(0x22, 5), low(kData), high(kData), 0, 5});
    put(write_data(kData + 16, 10 + value));
    expect_done();
    EXPECT_EQ(data(16), 11u);
  }
}

TEST_F(Pm4Packets, IbsCallIbsAndChain) {
  memory_.put_dwords(kIb, write_data(kData, 1));
  memory_.put_dwords(kIb + 20, indirect(kIb2, 5));
  memory_.put_dwords(kIb + 36, indirect(kIb2 + 0x100, 5, 1u << 20 | 3u << 24));
  memory_.put_dwords(kIb2, write_data(kData + 4, 2));
  memory_.put_dwords(kIb2 + 0x100, write_data(kData + 8, 3));
  put(indirect(kIb, 13));
  put(write_data(kData + 12, 4));
  expect_done();
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_EQ(data(4 * i), i + 1);
  memory_.put_dwords(kIb2, indirect(kIb, 5));  // a third level
  put(indirect(kIb, 13));
  EXPECT_EQ(run(), PKT_FAULT);
  EXPECT_EQ(ring_.fault, PKT_BAD_PACKET);
  EXPECT_EQ(ring_.fault_at, kIb2);
}

TEST_F(Pm4Packets, AnIbThatChainsToItselfEndsNoStepLate) {
  memory_.put_dwords(kIb, indirect(kIb, 4, 1u << 20));
  put(indirect(kIb, 4));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(step(), PKT_DONE);
  EXPECT_EQ(ring_.depth, 1u);
  EXPECT_EQ(ring_.read, 0u);
}

TEST_F(Pm4Packets, WhatTheDecoderDoesNotKnowIsTheOwners) {
  memory_.put_dwords(kIb, {pm4_header(0xa1, 3), 1, 2});
  put({pm4_header(0xa5, 4), low(kIb), high(kIb), 3});
  put({pm4_header(0xa4, 4), 7, 8, 9});
  expect_done();
  EXPECT_EQ(owner_.foreign,
            (std::vector<Dwords>{{0xa5, low(kIb), high(kIb), 3}, {0xa1, 1, 2}, {0xa4, 7, 8, 9}}));
  expect_fault({pm4_header(0xee, 2), 0}, PKT_BAD_PACKET);
  owner_.table.pm4 = nullptr;
  expect_fault({pm4_header(0xa4, 4), 7, 8, 9}, PKT_BAD_PACKET);
}

TEST_F(Pm4Packets, PacketsGoOverTheEndOfTheRing) {
  for (std::uint32_t i = 0; i < 200; ++i) {
    put({pm4_header(0x37, 7), 5u << 8, low(kData), high(kData), i, i + 1, i + 2});
    expect_done();
    ASSERT_EQ(data(0), i);
    ASSERT_EQ(data(8), i + 2);
  }
}

TEST_F(Pm4Packets, MalformedPacketsAreRefusedAndChangeNothing) {
  const std::uint32_t lo = low(kData), hi = high(kData);
  const std::vector<Dwords> bad = {
      {7},                                                             // type 0
      {1u << 30},                                                      // type 1
      {pm4_header(0x37, 9), 5u << 8, lo, hi, 1},                       // beyond the end
      {pm4_header(0x37, 4), 5u << 8, lo, hi},                          // no data
      {pm4_header(0x37, 5), 3u << 8, lo, hi, 1},                       // GDS
      {pm4_header(0x37, 5), 5u << 8 | 1u << 16, lo, hi, 1},            // memory, one address
      {pm4_header(0x37, 5), 5u << 8, lo + 1, hi, 1},                   // not aligned
      {pm4_header(0x49, 7), 0, 1u << 29, lo, hi, 1, 0},                // another length
      {pm4_header(0x49, 8), 0, 5u << 29, lo, hi, 1, 0, 0},             // unknown data
      {pm4_header(0x49, 8), 0, 2u << 29, lo + 4, hi, 1, 0, 0},         // not aligned
      {pm4_header(0x3c, 6), 3, 0x10, 0, 0, 0},                         // another length
      {pm4_header(0x3c, 7), 7, 0x10, 0, 0, 0, 0},                      // function 7
      {pm4_header(0x3c, 7), 3 | 2u << 4, lo, hi, 0, 0, 0},             // unknown space
      {pm4_header(0x3c, 7), 3 | 2u << 6, lo, hi, 0, 0, 0},             // unknown operation
      {pm4_header(0x3c, 7), 3 | 1u << 4, lo + 2, hi, 0, 0, 0},         // not aligned
      {pm4_header(0x40, 5), 5u << 8, 0x10, 0, lo},                     // another length
      {pm4_header(0x40, 6), 3 | 5u << 8, 0x10, 0, lo, hi},             // from GDS
      {pm4_header(0x40, 6), 3u << 8, 0x10, 0, lo, hi},                 // to GDS
      {pm4_header(0x40, 6), 5u << 8 | 1u << 16, 0x10, 0, lo + 4, hi},  // not aligned
      {pm4_header(0x22, 4), lo, hi, 0},                                // another length
      {pm4_header(0x22, 5), lo + 0x40, hi, 0, 2},                      // skips beyond the end
      {pm4_header(0x3f, 4), lo + 2, hi, 4},                            // IB not aligned
      {pm4_header(0x3f, 3), lo, hi},                                   // another length
      {pm4_header(0x3f, 4), lo, hi, 4 | 1u << 20},                     // a ring does not chain
      {pm4_header(0x79, 2), 0x40},                                     // no value
  };
  for (const Dwords& packet : bad) expect_fault(packet, PKT_BAD_PACKET);
}

TEST_F(Pm4Packets, AddressesThatAreNotMappedAreAFault) {
  const std::uint32_t lo = low(kUnmapped), hi = high(kUnmapped);
  const std::vector<Dwords> bad = {
      {pm4_header(0x37, 5), 5u << 8, lo, hi, 1},
      {pm4_header(0x49, 8), 0, 1u << 29, lo, hi, 1, 0, 0},
      {pm4_header(0x3c, 7), 3 | 1u << 4, lo, hi, 0, 0, 0},
      {pm4_header(0x40, 6), 5u << 8, 0x10, 0, lo, hi},
      {pm4_header(0x40, 6), 1 | 5u << 8, lo, hi, low(kData), high(kData)},
      {pm4_header(0x22, 5), lo, hi, 0, 0},
      {pm4_header(0x3f, 4), low(kIb), high(kIb), 4 | Owner::kNoMemory << 24},
  };
  for (const Dwords& packet : bad) expect_fault(packet, PKT_BAD_ADDRESS);
  put(indirect(kUnmapped, 4));
  ring_.fault = PKT_NO_FAULT;
  ring_.read = ring_.write - 4;
  EXPECT_EQ(run(), PKT_FAULT);
  EXPECT_EQ(ring_.fault, PKT_BAD_ADDRESS);
}

TEST_F(Pm4Packets, AnUnprivilegedQueueReachesNoRegistersAndWaitsForNothing) {
  owner_.table.read_register = nullptr;
  owner_.table.write_register = nullptr;
  owner_.table.space = nullptr;
  owner_.table.pm4 = nullptr;
  owner_.table.clock = nullptr;
  const std::uint32_t lo = low(kData), hi = high(kData);
  for (const std::uint32_t groups : {PKT_PM4_SYNC | PKT_PM4_SHADERS, 0}) {
    rules_.groups = groups;
    expect_fault({pm4_header(0x37, 5), 0, 0x3045, 0, 8}, PKT_BAD_PACKET);
    expect_fault({pm4_header(0x79, 3), 0x40, 5}, PKT_BAD_PACKET);
    expect_fault({pm4_header(0x3c, 7), 3, 0x1000, 0, 4, 0xff, 10}, PKT_BAD_PACKET);
    expect_fault({pm4_header(0x40, 6), 5u << 8, 0x10, 0, lo, hi}, PKT_BAD_PACKET);
    expect_fault({pm4_header(0x40, 6), 9 | 5u << 8, 0, 0, lo, hi}, PKT_BAD_PACKET);
    expect_fault({pm4_header(0x3f, 4), low(kIb), high(kIb), 4}, PKT_BAD_PACKET);
    expect_fault({pm4_header(0x49, 8), 0, 3u << 29, lo, hi, 0, 0, 0}, PKT_BAD_PACKET);
  }
  for (const std::uint32_t op : {0x15, 0x16, 0x28, 0x46, 0x68, 0x76}) {
    expect_fault({pm4_header(op, 3), 0, 0}, PKT_BAD_PACKET);
  }
  expect_fault({pm4_header(0x3c, 7), 3 | 1u << 4, lo, hi, 0, 0, 0}, PKT_BAD_PACKET);
}

TEST_F(Pm4Packets, PointersThatMakeNoSenseAreAFault) {
  ring_.write = kRingBytes / 4 + 1;
  EXPECT_EQ(step(), PKT_FAULT);
  EXPECT_EQ(ring_.fault, PKT_BAD_POINTER);
}

// ---- AQL

class AqlPackets : public PacketsTest {
 protected:
  struct Packet {
    std::uint16_t header = 0, setup = 0;
    std::uint32_t pad = 0;
    std::uint64_t body[6] = {};
    std::uint64_t completion = 0;
  };
  unsigned unit() const override { return 64; }
  pkt_result step() override { return pkt_aql_step(&ring_, memory_.c(), &owner_.table); }
  void put(const Packet& packet) {
    memory_.put(kRing + ring_.write % (kRingBytes / 64) * 64, packet);
    ++ring_.write;
  }
};

TEST_F(AqlPackets, TheEventIsToldAfterTheReadIndexAndTheMailbox) {
  memory_.put(kData + 8, std::int64_t{1});
  memory_.put(kData + 16, kOther);
  memory_.put(kData + 24, std::uint32_t{6});
  put({.header = 2, .completion = kData});
  EXPECT_EQ(step(), PKT_DONE);
  EXPECT_EQ(memory_.get<std::int64_t>(kData + 8), 0);
  EXPECT_EQ(memory_.get<std::uint64_t>(kOther), 6u);
  EXPECT_EQ(memory_.get<std::uint16_t>(kRing), 1u);
  ASSERT_EQ(owner_.interrupts.size(), 1u);
  EXPECT_EQ(owner_.interrupts[0].context, 6u);
  EXPECT_EQ(owner_.interrupts[0].reported, 1u);
  EXPECT_EQ(step(), PKT_IDLE);
}

TEST_F(AqlPackets, ABarrierWaitsAndAnUnpublishedPacketWaits) {
  memory_.put(kData + 8, std::int64_t{1});
  put({.header = 3, .body = {0, kData}});
  EXPECT_EQ(step(), PKT_WAITS);
  memory_.put(kData + 8, std::int64_t{0});
  EXPECT_EQ(step(), PKT_DONE);
  put({.header = 1});
  EXPECT_EQ(step(), PKT_WAITS);
  EXPECT_EQ(ring_.read, 1u);
}

TEST_F(AqlPackets, ABarrierOrWithoutSignalsIsMetAndPointersMustMakeSense) {
  put({.header = 5});
  EXPECT_EQ(step(), PKT_DONE);
  ring_.write = 0;
  EXPECT_EQ(step(), PKT_FAULT);
  EXPECT_EQ(ring_.fault, PKT_BAD_POINTER);
}

TEST_F(AqlPackets, WhatIsWrongStopsTheQueueBeforeThePacket) {
  const Packet bad_packets[] = {
      {.header = 4}, {.header = 0, .setup = 9}, {.header = 0, .setup = 2, .body = {kData, 0, 0, 9}}};
  for (const Packet& packet : bad_packets) {
    ring_.fault = PKT_NO_FAULT;
    ring_.read = ring_.write;
    put(packet);
    EXPECT_EQ(step(), PKT_FAULT);
    EXPECT_EQ(ring_.fault, PKT_BAD_PACKET) << packet.header;
  }
  const Packet bad_addresses[] = {{.header = 2, .completion = kUnmapped},
                                  {.header = 2, .completion = kData + 4},
                                  {.header = 2, .completion = FlatMemory::kReadOnly},
                                  {.header = 3, .body = {kUnmapped}},
                                  {.header = 0, .setup = 2, .body = {kUnmapped}}};
  for (const Packet& packet : bad_addresses) {
    ring_.fault = PKT_NO_FAULT;
    ring_.read = ring_.write;
    const std::uint64_t at = ring_.read;
    put(packet);
    EXPECT_EQ(step(), PKT_FAULT);
    EXPECT_EQ(ring_.fault, PKT_BAD_ADDRESS) << packet.completion;
    EXPECT_EQ(ring_.read, at);
    EXPECT_EQ(memory_.get<std::uint16_t>(kRing + at % 16 * 64), packet.header)
        << "published packet was taken";
  }
}

}  // namespace
}  // namespace vamdgpu::tests
