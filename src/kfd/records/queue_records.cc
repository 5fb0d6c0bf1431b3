// SPDX-License-Identifier: MIT
#include "kfd/records/queue_records.h"

#include <span>

#include "kfd/records/private_record.h"

namespace sluice::kfd {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::uint32_t kQueueRecord = 0;   // the first word of an object's record
constexpr std::uint32_t kComputeQueue = 0;  // KFD_QUEUE_TYPE_COMPUTE of the kernel, PM4 and AQL

// struct v9_mqd. A queue has one for each XCC, one after another, before all control stacks.
constexpr std::size_t kMqdBytes = 2048;
constexpr std::size_t kCountersAt = 12 * sizeof(std::uint32_t);  // compute_perfcount_enable
constexpr std::size_t kStackOffsetAt =
    174 * sizeof(std::uint32_t);  // cp_hqd_cntl_stack_offset: falls from the size
constexpr std::size_t kStackSizeAt = 175 * sizeof(std::uint32_t);  // cp_hqd_cntl_stack_size
constexpr std::size_t kWaveStateAt =
    176 * sizeof(std::uint32_t);  // cp_hqd_wg_state_offset: grows from the size

// Older kernels write the size of one MQD and of one stack into the header, newer ones that of all.
Bytes mqds_of(Bytes record) {
  const std::size_t mqd = load_u32(record, queue_record::kMqdBytesAt);
  const std::size_t all = mqd + load_u32(record, queue_record::kCtlStackBytesAt);
  const Bytes state = record.subspan(queue_record::kHeaderBytes);
  return state.first(all == 0 ? 0 : state.size() / all * mqd);
}

// What the MQDs say was saved.
struct Saved {
  bool has_size = false;  // of a control stack
  bool stack = false;
  bool waves = false;  // and state for it, in the same XCC
  bool counters = false;
};

Saved saved_by(Bytes mqds) {
  Saved saved;
  for (; mqds.size() >= kMqdBytes; mqds = mqds.subspan(kMqdBytes)) {
    const std::uint32_t size = load_u32(mqds, kStackSizeAt);
    const bool stack = load_u32(mqds, kStackOffsetAt) < size;
    saved.has_size |= size != 0;
    saved.stack |= stack;
    saved.counters |= load_u32(mqds, kCountersAt) != 0;
    saved.waves |= stack && load_u32(mqds, kWaveStateAt) > size;
  }
  return saved;
}

}  // namespace

QueueLosses losses_of_queues(const PrivateData& data, const Topology& topology) {
  QueueLosses losses;
  for (const Bytes record : data.objects()) {
    if (load_u32(record, 0) != kQueueRecord || load_u32(record, queue_record::kTypeAt) != kComputeQueue)
      continue;
    const Node* const gpu = topology.find_gpu(load_u32(record, queue_record::kGpuIdAt));
    if (gpu == nullptr || !is_gfx9(gpu->gfx_target_version)) continue;
    const bool has_stack = load_u32(record, queue_record::kCtlStackBytesAt) != 0;
    const Bytes mqds = mqds_of(record);
    const Saved saved = saved_by(mqds);
    if (!has_stack && saved.has_size) ++losses.no_stack;
    const bool lacks_dies = mqds.size() / kMqdBytes < gpu->num_xcc;
    if (lacks_dies || (!has_stack && saved.has_size && mqds.size() > kMqdBytes)) ++losses.several_xccs;
    if (!has_stack && saved.waves) ++losses.waves;
    if (!has_stack && saved.stack && !saved.waves) ++losses.stack_words;
    if (load_u32(record, queue_record::kGwsAt) != 0 && saved.waves) ++losses.gws_values;
    if (saved.counters) ++losses.counters;
  }
  return losses;
}

}  // namespace sluice::kfd
