// SPDX-License-Identifier: MIT
// A stage of a route: SDMA copy, checksum, store. A dump's route is copy → checksum → store, a restore's is
// the reverse.
//
// submit() starts work on one slot; the stage then gets every completion of that slot's Ops through
// advance(), until it returns Done. It never blocks (a bounded metadata syscall such as lseek or an ioctl is
// fine) and never completes inline. A stage that works inline posts its completion to the reactor. Functions
// that may return an error may also throw std::bad_alloc. Thread-bound to the lane.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "pipeline/slot.h"

namespace sluice {

enum class Direction : std::uint8_t { Dump, Restore };

// Busy leaves the slot unchanged; it is offered again, in the order in which the lane takes chunks, after the
// next completion. A stage may return Busy only if it has something in flight itself, or (an ordered stage)
// if an earlier chunk has not passed it yet.
enum class Submit : std::uint8_t { Started, Busy };

enum class Progress : std::uint8_t { Pending, Done };

class Stage {
 public:
  virtual ~Stage() = default;

  virtual const char* name() const = 0;

  // Takes ownership of slot.buffer if it returns Started. An error means that nothing of this slot is in
  // flight.
  virtual Result<Submit> submit(Slot& slot) = 0;

  // One Op of `slot` completed with `result`. Pending: more of this slot's Ops are in flight. Done or an
  // error: none is, and the buffer is the pipeline's again. While a failed lane drains, slots still get their
  // completions here; the stage must start only the work that it needs to come to rest.
  virtual Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) = 0;

  // Once, when the lane has failed: operations that wait for anything but the machine's own devices, such as
  // the other end of a pipe, must soon come to rest. No more submit() follows.
  virtual void abandon() {}

  // Once, after the last chunk has passed every stage, and only if nothing failed: sync, truncate, compare
  // totals.
  virtual Result<void> finish() { return {}; }
};

}  // namespace sluice
