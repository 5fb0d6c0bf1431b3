// SPDX-License-Identifier: MIT
// A stage of a route: SDMA copy, checksum, store. Dump is copy → checksum → store, restore is the route
// reversed.
//
// submit() starts work on one slot; the stage then gets every completion of that slot's Ops through
// advance(), until it answers Done. Never blocks (a bounded metadata syscall such as lseek or an ioctl is
// fine), never completes inline: a stage that works inline posts its completion to the reactor. Where an
// error may be answered, std::bad_alloc is one. Thread-bound to the lane.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "pipeline/slot.h"

namespace sluice {

enum class Direction : std::uint8_t { Dump, Restore };

// Busy leaves the slot as it was; it is offered again, in chunk order, after the next completion. A stage may
// answer Busy only if it has something in flight itself, or (an ordered stage) if a lower chunk has not
// passed it yet.
enum class Submit : std::uint8_t { Started, Busy };

enum class Progress : std::uint8_t { Pending, Done };

class Stage {
 public:
  virtual ~Stage() = default;

  virtual const char* name() const = 0;

  // Takes ownership of slot.buffer when it answers Started. An error means nothing of this slot is in flight.
  virtual Result<Submit> submit(Slot& slot) = 0;

  // One Op of `slot` completed with `result`. Pending: more of this slot's Ops are in flight. Done or an
  // error: none is, and the buffer is the pipeline's again. While a failed lane drains, slots still get their
  // completions here and the stage must not start new work for them beyond what it needs to come to rest.
  virtual Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) = 0;

  // Once, when the lane has failed: what still waits for somebody outside the machine's own devices, as for
  // the other end of a pipe, must come to rest without him, soon. No more submit() follows.
  virtual void abandon() {}

  // Once, after the last chunk passed every stage, and only if nothing failed: sync, truncate, compare
  // totals.
  virtual Result<void> finish() { return {}; }
};

}  // namespace sluice
