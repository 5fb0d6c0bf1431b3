// SPDX-License-Identifier: MIT
// Waves that are saved in the middle, by a trap handler of this test, and go on in another queue. The
// drivers' own handlers do it in guests.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>

#include "cp/mqd.h"
#include "shader/dispatcher.h"
#include "tests/queues_kit.h"
#include "tests/shader_kit.h"

namespace sluice::card::tests {
namespace {

using shader::ContextSave;
using shader::Dispatcher;
using shader::DispatchPacket;
using shader::ProcessMemory;
using shader::Surroundings;

// Saves 32 VGPRs, the SGPRs and 2 KiB of LDS, as the drivers' handlers do: the second instruction is the
// entry of a restore, EXEC has the address, and its bit 58 says that this wave has the LDS, too.
constexpr const char* kHandler = R"(
.text
.globl handler
.p2align 8
handler:
  s_branch save
  s_branch restore
.macro place                      // ttmp[6:7] address, ttmp[8:11] the same as a buffer of dwords by lane
  s_mov_b64 ttmp[6:7], exec
  s_lshr_b32 ttmp14, ttmp7, 26    // bit 58
  s_and_b32 ttmp7, ttmp7, 0xffff
  s_mov_b32 ttmp8, ttmp6
  s_or_b32 ttmp9, ttmp7, 0x40000
  s_mov_b32 ttmp10, -1
  s_mov_b32 ttmp11, 0x800000
  s_mov_b64 exec, -1
  s_movk_i32 ttmp12, 0x1000
.endm
save:
  s_mov_b64 ttmp[2:3], exec
  s_mov_b32 ttmp4, m0
  s_getreg_b32 ttmp5, hwreg(HW_REG_STATUS)
  s_sendmsg sendmsg(MSG_SAVEWAVE)
  place
.set i, 0
.rept 16
  buffer_store_dword v[i], off, ttmp[8:11], 0 offset:i*256
  buffer_store_dword v[i+16], off, ttmp[8:11], ttmp12 offset:i*256
  .set i, i+1
.endr
.set i, 0
.rept 25
  s_store_dwordx4 s[i*4:i*4+3], ttmp[6:7], 0x2000+i*16
  .set i, i+1
.endr
  s_store_dwordx2 s[100:101], ttmp[6:7], 0x2000+400
  s_store_dwordx2 vcc, ttmp[6:7], 0x2000+416
  s_store_dwordx4 ttmp[0:3], ttmp[6:7], 0x2000+432
  s_store_dwordx2 ttmp[4:5], ttmp[6:7], 0x2000+448
  s_and_b32 ttmp14, ttmp14, 1
  s_cbranch_scc0 done
  v_mbcnt_lo_u32_b32 v0, -1, 0
  v_mbcnt_hi_u32_b32 v0, -1, v0
  v_lshlrev_b32 v0, 2, v0
  s_movk_i32 ttmp12, 0x2240
.set i, 0
.rept 8
  ds_read_b32 v1, v0 offset:i*256
  s_waitcnt lgkmcnt(0)
  buffer_store_dword v1, off, ttmp[8:11], ttmp12 offset:i*256
  .set i, i+1
.endr
done:
  s_endpgm_saved
restore:
  place
  s_and_b32 ttmp14, ttmp14, 1
  s_cbranch_scc0 registers
  v_mbcnt_lo_u32_b32 v0, -1, 0
  v_mbcnt_hi_u32_b32 v0, -1, v0
  v_lshlrev_b32 v0, 2, v0
  s_movk_i32 ttmp12, 0x2240
.set i, 0
.rept 8
  buffer_load_dword v1, off, ttmp[8:11], ttmp12 offset:i*256
  s_waitcnt vmcnt(0)
  ds_write_b32 v0, v1 offset:i*256
  .set i, i+1
.endr
  s_movk_i32 ttmp12, 0x1000
registers:
.set i, 0
.rept 16
  buffer_load_dword v[i], off, ttmp[8:11], 0 offset:i*256
  buffer_load_dword v[i+16], off, ttmp[8:11], ttmp12 offset:i*256
  .set i, i+1
.endr
.set i, 0
.rept 25
  s_load_dwordx4 s[i*4:i*4+3], ttmp[6:7], 0x2000+i*16
  .set i, i+1
.endr
  s_load_dwordx2 s[100:101], ttmp[6:7], 0x2000+400
  s_load_dwordx2 vcc, ttmp[6:7], 0x2000+416
  s_load_dwordx4 ttmp[0:3], ttmp[6:7], 0x2000+432
  s_load_dwordx2 ttmp[4:5], ttmp[6:7], 0x2000+448
  s_waitcnt lgkmcnt(0)
  s_barrier
  s_mov_b64 exec, ttmp[2:3]
  s_mov_b32 m0, ttmp4
  s_setreg_b32 hwreg(HW_REG_STATUS), ttmp5
  s_rfe_b64 ttmp[0:1]
)";

constexpr const char* kKernel = R"(
typedef unsigned u32;
kernel void k(global u32* out, u32 rounds) {
  local u32 shared[256];
  u32 item = __builtin_amdgcn_workitem_id_x(), n = item + 256 * __builtin_amdgcn_workgroup_id_x(), id = n;
  shared[item] = n * 3;
  __builtin_amdgcn_s_barrier();
  for (u32 i = 0; i < rounds; ++i) {
    n = n * 1664525u + 1013904223u;
    if (n & 0x1000) n ^= n >> 7;
    if ((i & 3) == 0) {
      __builtin_amdgcn_s_barrier();
      n += shared[(item + 1) & 255];
      __builtin_amdgcn_s_barrier();
      shared[item] ^= n;
    }
  }
  out[id] = n + shared[item];
}
)";

constexpr std::uint32_t kItems = 256, kGroups = 2, kRounds = 6;

std::vector<std::uint32_t> expected() {
  std::vector<std::uint32_t> all;
  for (std::uint32_t group = 0; group < kGroups; ++group) {
    std::array<std::uint32_t, kItems> n{}, shared{};
    for (std::uint32_t i = 0; i < kItems; ++i) n[i] = i + kItems * group;
    for (std::uint32_t i = 0; i < kItems; ++i) shared[i] = n[i] * 3;
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      for (std::uint32_t& value : n) {
        value = value * 1664525U + 1013904223U;
        if ((value & 0x1000) != 0) value ^= value >> 7;
      }
      if (round % 4 != 0) continue;
      for (std::uint32_t i = 0; i < kItems; ++i) n[i] += shared[(i + 1) % kItems];
      for (std::uint32_t i = 0; i < kItems; ++i) shared[i] ^= n[i];
    }
    for (std::uint32_t i = 0; i < kItems; ++i) all.push_back(n[i] + shared[i]);
  }
  return all;
}

// A process with both programs in its memory, and a queue's MQD in the driver's.
class SavedWaves : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kCode = LooseChip::kProcess, kTba = kCode + 0x8000, kOut = kCode + 0x10000,
                                 kArguments = kCode + 0x12000, kArea = kCode + 0x20000,
                                 kMqd = LooseChip::kDriver;
  static constexpr std::uint32_t kStackBytes = 0x2000;

  static void SetUpTestSuite() {
    const test::TempDir dir;
    kernel_ = compile_for_gpu(dir, kKernel);
    handler_ = assemble_for_gpu(dir, kHandler);
  }

  void SetUp() override {
    ASSERT_FALSE(kernel_.empty() || handler_.empty()) << "clang and lld are needed (scripts/setup --tests)";
    CodeObject kernel(kernel_), handler(handler_);
    descriptor_ = put(kCode, kernel, "k.kd");
    tba_ = put(kTba, handler, "handler");
    const std::uint64_t out = kOut;
    std::memcpy(chip_.at(kArguments), &out, sizeof out);
    std::memcpy(chip_.at(kArguments + 8), &kRounds, sizeof kRounds);
    // 48 VGPRs, so that what the handler saves has room.
    const auto rsrc1 = (chip_.get<std::uint32_t>(descriptor_ + 48) & ~0x3fU) | 5;
    std::memcpy(chip_.at(descriptor_ + 48), &rsrc1, sizeof rsrc1);
    store(mqd::compute::kStackOffset, kStackBytes);
  }

  std::uint64_t put(std::uint64_t where, CodeObject& code, const char* symbol) {
    std::memcpy(chip_.at(where), code.image().data(), code.image().size());
    return where + code.symbol(symbol) - reinterpret_cast<std::uint64_t>(code.image().data());
  }
  void store(std::size_t field, std::uint32_t value, std::uint64_t mqd = kMqd) {
    std::memcpy(chip_.at(mqd + (mqd::compute::kSlot + field) * 4), &value, sizeof value);
  }
  std::uint32_t load(std::size_t field, std::uint64_t mqd = kMqd) {
    return chip_.get<std::uint32_t>(mqd + (mqd::compute::kSlot + field) * 4);
  }

  // As a queue has it that is mapped now.
  struct Mapped {
    explicit Mapped(SavedWaves& test, std::uint64_t mqd = kMqd, std::uint64_t area = kArea,
                    shader::Deal deal = {})
        : process(
              test.chip_.process(Hub::kGc), [] { return 0; }, [](std::uint32_t) {}),
          dispatcher(
              process, test.chip_.space(Hub::kGc, 0), Surroundings{.tba = test.tba_},
              ContextSave{mqd, area, 0x40000, kStackBytes, test.load(mqd::compute::kStackOffset, mqd)},
              [&test](const std::string& line) { test.log_ += line + "\n"; }, deal) {}
    ProcessMemory process;
    Dispatcher dispatcher;
  };

  DispatchPacket packet() const {
    DispatchPacket packet = packet_of(descriptor_, nullptr, kGroups, kItems);
    packet.kernarg = kArguments;
    return packet;
  }
  std::vector<std::uint32_t> results() {
    std::vector<std::uint32_t> all(kGroups * kItems);
    std::memcpy(all.data(), chip_.at(kOut), all.size() * 4);
    return all;
  }
  void clear() { std::memset(chip_.at(kOut), 0, kGroups * kItems * 4); }

  static std::vector<std::byte> kernel_, handler_;
  LooseChip chip_;
  std::uint64_t descriptor_ = 0, tba_ = 0;
  std::string log_;
};
std::vector<std::byte> SavedWaves::kernel_, SavedWaves::handler_;

TEST_F(SavedWaves, ADispatchRunsToItsEnd) {
  Mapped queue(*this);
  while (queue.dispatcher.step(packet(), {}, 1000) == Dispatcher::Step::kMore) {
  }
  EXPECT_EQ(results(), expected()) << log_;
}

TEST_F(SavedWaves, AQueueThatIsUnmappedAnywhereGoesOnInAnother) {
  Mapped whole(*this);
  while (whole.dispatcher.step(packet(), {}, 100000) == Dispatcher::Step::kMore) {
  }
  const std::uint64_t all = whole.dispatcher.executed();
  ASSERT_EQ(results(), expected()) << log_;
  for (std::uint64_t at = 1; at < all; at += 37) {
    SCOPED_TRACE("after " + std::to_string(at) + " instructions");
    clear();
    log_.clear();
    store(mqd::compute::kStackOffset, kStackBytes);
    {
      Mapped first(*this);
      ASSERT_EQ(first.dispatcher.step(packet(), {}, at), Dispatcher::Step::kMore) << log_;
      first.dispatcher.save();
    }
    ASSERT_LT(load(mqd::compute::kStackOffset), kStackBytes) << log_;
    Mapped second(*this);
    Dispatcher::Step step{};
    while ((step = second.dispatcher.step(packet(), {}, 777)) == Dispatcher::Step::kMore) {
    }
    ASSERT_EQ(step, Dispatcher::Step::kDone) << log_;
    ASSERT_EQ(results(), expected()) << log_;
    EXPECT_EQ(load(mqd::compute::kStackOffset), kStackBytes);
  }
}

TEST_F(SavedWaves, AQueueThatIsUnmappedAgainAndAgainStillEnds) {
  for (int i = 0; i < 1000; ++i) {
    Mapped queue(*this);
    const auto step = queue.dispatcher.step(packet(), {}, 400);
    if (step == Dispatcher::Step::kDone) {
      EXPECT_EQ(results(), expected()) << log_;
      EXPECT_GT(i, 3);
      return;
    }
    ASSERT_EQ(step, Dispatcher::Step::kMore) << log_;
    queue.dispatcher.save();
  }
  FAIL() << "never ended";
}

TEST_F(SavedWaves, AQueueThatIsUnmappedWhileItsWavesComeBackGoesOn) {
  for (std::uint64_t at = 1; at < 600; at += 7) {
    SCOPED_TRACE("after " + std::to_string(at) + " instructions");
    clear();
    log_.clear();
    store(mqd::compute::kStackOffset, kStackBytes);
    for (const std::uint64_t budget : {std::uint64_t{100}, at}) {
      Mapped queue(*this);
      ASSERT_EQ(queue.dispatcher.step(packet(), {}, budget), Dispatcher::Step::kMore) << log_;
      queue.dispatcher.save();
    }
    Mapped last(*this);
    ASSERT_EQ(last.dispatcher.step(packet(), {}, 100000), Dispatcher::Step::kDone) << log_;
    ASSERT_EQ(results(), expected()) << log_;
  }
}

TEST_F(SavedWaves, AQueueThatIsUnmappedBeforeItRanKeepsThem) {
  {
    Mapped first(*this);
    ASSERT_EQ(first.dispatcher.step(packet(), {}, 100), Dispatcher::Step::kMore);
    ASSERT_TRUE(first.dispatcher.save());
  }
  EXPECT_TRUE(Mapped(*this).dispatcher.save());
  Mapped last(*this);
  ASSERT_EQ(last.dispatcher.step(packet(), {}, 100000), Dispatcher::Step::kDone) << log_;
  EXPECT_EQ(last.dispatcher.waves_resumed(), 4U);
  EXPECT_EQ(results(), expected()) << log_;
}

// Two XCCs have one workgroup of the dispatch each, and an MQD and a save area each. The second one is done
// before the first is saved: it must not begin again.
TEST_F(SavedWaves, ADispatchOfTwoXccsGoesOnWhereEachOfThemWas) {
  constexpr std::uint64_t kOtherMqd = kMqd + 0x10000, kOtherArea = kArea + 0x40000;
  store(mqd::compute::kStackOffset, kStackBytes, kOtherMqd);
  {
    Mapped first(*this, kMqd, kArea, {0, 2});
    Mapped second(*this, kOtherMqd, kOtherArea, {1, 2});
    ASSERT_EQ(first.dispatcher.step(packet(), {}, 200), Dispatcher::Step::kMore) << log_;
    ASSERT_EQ(second.dispatcher.step(packet(), {}, 1'000'000), Dispatcher::Step::kDone) << log_;
    EXPECT_TRUE(first.dispatcher.save());
    EXPECT_TRUE(second.dispatcher.save());
  }
  Mapped first(*this, kMqd, kArea, {0, 2});
  Mapped second(*this, kOtherMqd, kOtherArea, {1, 2});
  EXPECT_EQ(first.dispatcher.step(packet(), {}, 1'000'000), Dispatcher::Step::kDone) << log_;
  EXPECT_EQ(second.dispatcher.step(packet(), {}, 1'000'000), Dispatcher::Step::kDone) << log_;
  EXPECT_EQ(second.dispatcher.executed(), 0U);
  EXPECT_EQ(results(), expected()) << log_;
  first.dispatcher.finish();
  second.dispatcher.finish();
  EXPECT_FALSE(second.dispatcher.save());  // nothing is left
}

// What Linux 7.2 does: the MQD comes back, and the control stack does not.
TEST_F(SavedWaves, WavesWhoseControlStackIsGoneStopTheQueue) {
  {
    Mapped first(*this);
    ASSERT_EQ(first.dispatcher.step(packet(), {}, 500), Dispatcher::Step::kMore);
    first.dispatcher.save();
  }
  std::memset(chip_.at(kMqd + 4096), 0, kStackBytes);
  Mapped second(*this);
  EXPECT_EQ(second.dispatcher.step(packet(), {}, 500), Dispatcher::Step::kStopped);
}

TEST_F(SavedWaves, AnInstructionThatIsNotInTheTablesIsNamed) {
  const std::uint32_t unknown = 0xbe80007f;  // SOP1 of no opcode
  const auto entry = chip_.get<std::uint64_t>(descriptor_ + 16);
  std::memcpy(chip_.at(descriptor_ + entry), &unknown, sizeof unknown);
  const std::uint32_t mfma_of_doubles[2] = {0xd3ee8000, 0x04020000};
  Mapped queue(*this);
  EXPECT_EQ(queue.dispatcher.step(packet(), {}, 10), Dispatcher::Step::kMore);  // s_mov_b32
  std::memcpy(chip_.at(descriptor_ + entry), mfma_of_doubles, sizeof mfma_of_doubles);
  Mapped other(*this);
  EXPECT_EQ(other.dispatcher.step(packet(), {}, 10), Dispatcher::Step::kStopped);
  EXPECT_NE(other.dispatcher.why().find("VOP3P 0x6e"), std::string::npos) << other.dispatcher.why();
}

TEST_F(SavedWaves, AProgramOutsideOfMemoryStopsTheQueueWithItsFault) {
  const std::uint64_t far = 0x7000'0000;
  std::memcpy(chip_.at(descriptor_ + 16), &far, sizeof far);
  Mapped queue(*this);
  EXPECT_EQ(queue.dispatcher.step(packet(), {}, 10), Dispatcher::Step::kStopped);
  const auto fault = queue.process.take_fault();
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->address, descriptor_ + far);
  EXPECT_EQ(fault->access, Access::kRead);
}

}  // namespace
}  // namespace sluice::card::tests
