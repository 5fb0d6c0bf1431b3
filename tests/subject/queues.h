// SPDX-License-Identifier: MIT
// User-mode queues of the subject: made for every GPU, and, where a driver runs them (Arena::run_queues),
// given packets whose effects are checked.
//
// A running queue always has work going on: a batch of packets whose middle one waits for a gate (a signal
// that only the subject opens). What lies before the gate has been consumed and seen, the rest stands in the
// ring, so that a dump catches the queue in the middle of its work. Opening the gate lets the batch end,
// which raises the queue's event; then the next batch is put in. Packets: HSA's AQL or gfx9's PM4 on a
// compute queue, SDMA 4 on the other.
//
// Only the subject's main thread. Waiting is WAIT_EVENTS with a bound.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "subject/arena.h"
#include "subject/device.h"
#include "subject/options.h"

namespace sluice::subject {

// An SDMA and a compute queue on a GPU, or two of the latter (Options::pm4), with their memory and its
// contents. Packets come later.
Result<void> add_queues(Arena& arena, std::uint32_t gpu, const TopologyGpu& topology, const Options& options);

// The first batch is put into every queue and consumed up to its gate. REQUIRES: add_events() and
// add_queues() with Options::run_queues. ETIME: the driver consumes nothing.
Result<void> start_queues(Arena& arena);

// Every queue exists; a running one stands at its gate, with everything before it done, and nothing behind.
Result<void> check_queues(Arena& arena);
// Every running queue ends its batch, the effects are right, and gets the next batch.
Result<void> work_queues(Arena& arena);

// UPDATE_QUEUE of each: so many percent of the GPU. A queue of 0 keeps its packets.
Result<void> share_queues(Arena& arena, std::uint32_t percent);

// Opens all gates and sees whether the queues consume. A queue that stands keeps its open gate: the next
// check or work waits for it.
struct QueueProgress {
  bool runs = false;
  std::uint64_t consumed = 0;  // packets known to be through, of all queues since the start
};
Result<QueueProgress> queue_progress(Arena& arena);

}  // namespace sluice::subject
