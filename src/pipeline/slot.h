// SPDX-License-Identifier: MIT
// A slot: one staging buffer and its current chunk. A lane's fixed number of slots bounds its memory and
// gives back-pressure: slots in a state are the queue, and there is no other.
//
// I1: a slot is in exactly one state: Free, Ready (to be offered to stage `stage`) or Running (owned by it).
// I3: the buffer has one owner: the pipeline while Free or Ready, the stage while Running. It changes hands
// only in Stage::submit and at the completion that ends it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"
#include "pipeline/layout.h"
#include "pipeline/reactor/reactor.h"

namespace sluice {

// The unit in which zeros are recognised: a zero unit becomes a hole in a file.
inline constexpr std::uint64_t kZeroUnitBytes = 64 * kKiB;

// Operations of one slot that may be in flight at once (several non-zero runs of one chunk).
inline constexpr std::size_t kOpsPerSlot = 4;

enum class SlotState : std::uint8_t { Free, Ready, Running };

struct Slot {
  std::uint32_t index = 0;      // number within the lane
  std::span<std::byte> buffer;  // chunk_bytes of the lane's arena, aligned to kBufferAlignment
  SlotState state = SlotState::Free;
  std::uint32_t stage = 0;   // position on the route
  Chunk chunk;               // its chunk; buffer[0] is the byte at chunk.file_offset
  std::uint64_t number = 0;  // how many chunks the lane took before this one
  // One per kZeroUnitBytes of the buffer: known to be all zero. On dump set by the checksum stage; on restore
  // by the source for holes, whose buffer bytes are undefined until needed. Sized once.
  std::vector<bool> zero_units;
  // The same for a dump with a parent: the parent has all their bytes, and they are not written. Set by the
  // checksum stage; otherwise false, or empty.
  std::vector<bool> known_units;
  std::array<Op, kOpsPerSlot> ops;  // all with op.slot == this
  std::uint64_t entered_ns = 0;     // when it entered its present state, for occupancy figures

  // Used by the stage that runs the slot, which sets them in submit(): no stage keeps a table by slot.
  std::uint64_t cursor = 0;        // first byte of the chunk for which no Op was started yet
  std::uint32_t live_ops = 0;      // Ops in flight
  bool has_turn = false;           // the chunk counts as on the disk
  const Op* failed_op = nullptr;   // the first that failed, with its task
  std::int32_t failed_result = 0;  // its -errno

  Op& op() { return ops[0]; }
};

// Alignment of buffers in bytes: satisfies every O_DIRECT and every userptr rule (64 KiB pages included).
inline constexpr std::uint64_t kBufferAlignment = 64 * kKiB;

}  // namespace sluice
