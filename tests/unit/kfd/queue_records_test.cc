// SPDX-License-Identifier: MIT
// What a restore of queues would lose, read from their records in the private data.
#include "kfd/records/queue_records.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace sluice::kfd {
namespace {

constexpr std::uint32_t kGpuId = 0x2000;
constexpr std::uint32_t kStackBytes = 0x9000;
constexpr std::uint32_t kGfx90a = 90010, kGfx942 = 90402, kGfx1030 = 100300, kGfx803 = 80003;

// Dwords 174 to 176 of an MQD.
struct Stack {
  std::uint32_t offset = kStackBytes, size = kStackBytes, wave_state = kStackBytes;
};
constexpr Stack kIdle{};
constexpr Stack kRunning{.offset = kStackBytes - 64, .wave_state = kStackBytes + 4096};
constexpr Stack kOnlyWords{.offset = kStackBytes - 64};
constexpr Stack kOnlyState{.wave_state = kStackBytes + 4096};

void put(std::vector<std::uint8_t>& bytes, std::size_t at, std::uint32_t value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

// A queue's record with an MQD for each XCC, and control stacks of `ctl_stack` bytes in all.
struct Queue {
  std::vector<Stack> xccs = {kRunning};
  std::uint32_t ctl_stack = 0;
  std::uint32_t gws = 0;
  std::uint32_t type = 0;
  std::uint32_t gpu_id = kGpuId;
  std::uint32_t counters = 0;
  bool total_in_header = true;  // else the sizes of one XCC

  std::vector<std::uint8_t> record() const {
    const auto count = static_cast<std::uint32_t>(xccs.size());
    std::vector<std::uint8_t> bytes(120 + count * 2048 + ctl_stack, 0xA5);
    const std::uint32_t copies = total_in_header ? 1 : count;
    put(bytes, 0, 0);
    put(bytes, 4, 0);
    put(bytes, 64, gpu_id);
    put(bytes, 68, type);
    put(bytes, 92, gws);
    put(bytes, 108, ctl_stack / copies);
    put(bytes, 112, count * 2048 / copies);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::size_t mqd = 120 + i * 2048;
      put(bytes, mqd + 12 * 4, counters);
      put(bytes, mqd + 174 * 4, xccs[i].offset);
      put(bytes, mqd + 175 * 4, xccs[i].size);
      put(bytes, mqd + 176 * 4, xccs[i].wave_state);
    }
    return bytes;
  }
};

QueueLosses losses(const std::vector<Queue>& queues, std::uint32_t gfx_target_version = kGfx90a,
                   std::uint32_t num_xcc = 0) {
  std::vector<std::uint8_t> bytes(8 + 8);
  for (const Queue& queue : queues) {
    const auto record = queue.record();
    bytes.insert(bytes.end(), record.begin(), record.end());
  }
  std::vector<std::uint8_t> event(64);
  event[0] = 1;
  bytes.insert(bytes.end(), event.begin(), event.end());
  const auto data = PrivateData::read(bytes, {{kGpuId}, {}, queues.size() + 1});
  Topology topology;
  Node gpu;
  gpu.gpu_id = kGpuId;
  gpu.gfx_target_version = gfx_target_version;
  gpu.num_xcc = num_xcc;
  topology.nodes = {Node(), gpu};
  return data ? losses_of_queues(*data, topology) : QueueLosses{};
}

TEST(QueueLosses, waves_are_lost_where_state_was_saved_without_its_control_stack) {
  EXPECT_EQ(losses({{}}), (QueueLosses{.waves = 1, .no_stack = 1}));
  EXPECT_EQ(losses({{}, {.xccs = {kIdle}}, {}}), (QueueLosses{.waves = 2, .no_stack = 3}));
  EXPECT_EQ(losses({{}}, kGfx942), (QueueLosses{.waves = 1, .no_stack = 1}));
}

TEST(QueueLosses, an_idle_queue_loses_its_room_for_waves) {
  EXPECT_EQ(losses({{.xccs = {kIdle}}}), (QueueLosses{.no_stack = 1}));
  EXPECT_EQ(losses({{.xccs = {kOnlyState}}}), (QueueLosses{.no_stack = 1}));
  EXPECT_EQ(losses({{.xccs = {kIdle}, .ctl_stack = kStackBytes}}), QueueLosses());
  EXPECT_EQ(losses({{.xccs = {Stack{0, 0, 0}}}}), QueueLosses());
}

TEST(QueueLosses, words_on_the_stack_without_saved_state_count_by_themselves) {
  EXPECT_EQ(losses({{.xccs = {kOnlyWords}}}), (QueueLosses{.no_stack = 1, .stack_words = 1}));
}

TEST(QueueLosses, a_saved_control_stack_keeps_the_waves) {
  EXPECT_EQ(losses({{.ctl_stack = kStackBytes}}), QueueLosses());
  EXPECT_EQ(losses({{.xccs = {kOnlyWords}, .ctl_stack = kStackBytes}}), QueueLosses());
}

TEST(QueueLosses, each_xcc_is_judged_by_its_own_words) {
  for (const bool total : {true, false}) {
    EXPECT_EQ(losses({{.xccs = {kIdle, kIdle, kRunning, kIdle}, .total_in_header = total}}),
              (QueueLosses{.waves = 1, .no_stack = 1, .several_xccs = 1}));
    EXPECT_EQ(losses({{.xccs = {kOnlyWords, kOnlyState}, .total_in_header = total}}),
              (QueueLosses{.no_stack = 1, .several_xccs = 1, .stack_words = 1}));
    EXPECT_EQ(losses({{.xccs = {kIdle, kRunning}, .ctl_stack = 2 * kStackBytes, .total_in_header = total}}),
              QueueLosses());
  }
}

// As Linux 6.12 saves a queue of a whole MI300X.
TEST(QueueLosses, dies_without_an_mqd_are_lost) {
  const Queue first_die_only{.xccs = {kIdle}, .ctl_stack = kStackBytes};
  EXPECT_EQ(losses({first_die_only}, kGfx942, 2), (QueueLosses{.several_xccs = 1}));
  EXPECT_EQ(losses({first_die_only, first_die_only}, kGfx942, 8), (QueueLosses{.several_xccs = 2}));
  EXPECT_EQ(losses({first_die_only}, kGfx942, 1), QueueLosses());
  EXPECT_EQ(losses({{.xccs = {kIdle, kIdle}, .ctl_stack = 2 * kStackBytes}}, kGfx942, 2), QueueLosses());
}

TEST(QueueLosses, only_gfx9_keeps_the_stack_in_the_kernel) {
  for (const std::uint32_t gfx : {kGfx803, kGfx1030, 110000U, 120001U, 0U})
    EXPECT_EQ(losses({{.gws = 1}}, gfx), QueueLosses()) << gfx;
}

TEST(QueueLosses, queues_of_sdma_and_of_unknown_gpus_have_no_waves) {
  EXPECT_EQ(losses({{.type = 1}}), QueueLosses());
  EXPECT_EQ(losses({{.gpu_id = 0x3000}}), QueueLosses());
}

TEST(QueueLosses, values_of_gws_are_lost_where_a_kernel_was_running) {
  EXPECT_EQ(losses({{.ctl_stack = kStackBytes, .gws = 1}}), (QueueLosses{.gws_values = 1}));
  EXPECT_EQ(losses({{.gws = 1}}), (QueueLosses{.waves = 1, .no_stack = 1, .gws_values = 1}));
  EXPECT_EQ(losses({{.xccs = {kIdle}, .gws = 1}}), (QueueLosses{.no_stack = 1}));
}

TEST(QueueLosses, a_profilers_hold_on_the_counters_is_lost) {
  EXPECT_EQ(losses({{.xccs = {kIdle}, .counters = 1}, {.xccs = {kIdle}}}),
            (QueueLosses{.no_stack = 2, .counters = 1}));
}

TEST(QueueLosses, a_record_without_mqd_loses_nothing) {
  EXPECT_EQ(losses({{.xccs = {}}}), QueueLosses());
}

}  // namespace
}  // namespace sluice::kfd
