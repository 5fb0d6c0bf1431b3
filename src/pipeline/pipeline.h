// SPDX-License-Identifier: MIT
// The loop: offer ready slots to their stage, offer the next chunks to the first stage while slots are free,
// wait, advance. It fits one screen; all I/O is in the stages and the reactor.
//
// Progress: chunks come to the first stage in the order of the walk (by index, if there is one cursor), and
// at most one waits there. The first of those on the route is never refused because of order. A refusal for
// lack of capacity implies something in flight. Hence the loop never waits with nothing in flight (asserted).
// Failure: the first error is kept; admission and offering stop; operations in flight drain; run() returns
// the error.
// Invariants asserted: I1 (states add up), I3 (one owner), I4 no allocation after start (except a store that
// opens files as they come), I5 nothing in flight when run() returns, I6 success only after every chunk and
// every stage's finish() succeeded.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "pipeline/chunk_walk.h"
#include "pipeline/layout.h"
#include "pipeline/reactor/reactor.h"
#include "pipeline/slot.h"
#include "pipeline/stage.h"
#include "pipeline/trace.h"

namespace sluice {

inline constexpr std::size_t kMaxStages = 4;

// What one run did. Times in nanoseconds of the reactor's clock.
struct PipelineStats {
  struct StageStats {
    const char* name = "";
    // Time of slots in this stage, summed over slots. Divided by elapsed_ns: the mean number of slots in it.
    std::uint64_t slot_ns = 0;
    std::uint64_t busy_ns = 0;  // time during which at least one slot was in this stage
    std::uint64_t refused = 0;  // times it answered Busy
  };
  std::uint64_t chunks = 0;
  std::uint64_t bytes = 0;       // file bytes, header included
  std::uint64_t zero_bytes = 0;  // of these, found or known to be zero in whole units
  std::uint64_t elapsed_ns = 0;  // first admission to end of the last finish()
  std::uint32_t stages = 0;
  std::array<StageStats, kMaxStages> stage{};

  // The stage that was occupied for most of the time. REQUIRES: stages > 0.
  const StageStats& slowest() const;
};

// Observes a running pipeline; called from the lane's thread, must not block. May be null.
// `chunks_done` counts finished chunks.
using ProgressFn = std::function<void(std::uint64_t chunks_done, std::uint64_t chunks_total)>;

// Thread-bound. Borrows everything for its life.
class Pipeline {
 public:
  // REQUIRES: at least one slot and one stage, at most kMaxStages; every slot.buffer holds
  // layout.chunk_bytes(). With more than one cursor, no stage of the route needs the order of the file.
  Pipeline(const ImageLayout& layout, std::span<Slot> slots, std::span<Stage* const> route, Reactor& reactor,
           std::uint32_t cursors = 1);

  // Carries every chunk along the route. Returns when all are done or, after a failure, when everything in
  // flight has come to rest. Call once. `cancelled` (may be null) is read between completions: true fails the
  // run with ECANCELED.
  Result<PipelineStats> run(const ProgressFn& progress = nullptr,
                            const std::function<bool()>& cancelled = nullptr);

  // Before run(): records each stay of a chunk in a stage. Borrowed until run() returns.
  void trace_into(Trace& trace) { trace_ = &trace; }

  // Called after every step in tests: asserts the invariants.
  void check_invariants() const;

 private:
  void offer();
  bool offer(Slot& slot);
  Result<void> wait_and_advance();
  void fail(Error error);
  void leave_stage(Slot& slot);

  const ImageLayout& layout_;
  std::span<Slot> slots_;
  std::vector<Stage*> route_;
  Reactor& reactor_;
  std::vector<Slot*> order_;  // slots on the route, in the order of the walk
  std::vector<Completion> completions_;
  std::array<std::uint32_t, kMaxStages> running_{};  // slots Running per stage
  std::array<std::uint64_t, kMaxStages> busy_since_ns_{};
  ChunkWalk walk_;
  std::uint64_t taken_ = 0;  // chunks of the walk so far
  std::uint64_t done_ = 0;
  std::uint32_t in_stages_ = 0;
  bool failed_ = false;
  Error error_;
  PipelineStats stats_;
  Trace* trace_ = nullptr;
};

}  // namespace sluice
