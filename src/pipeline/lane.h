// SPDX-License-Identifier: MIT
// A lane: what carries the chunks of one layout, alone, from its first stage to its last. Staging arena,
// slots, reactor, stages and loop, in the order in which they must die: stages first, then what they use.
//
//   SLUICE_TRY_ASSIGN(const std::unique_ptr<Lane> lane, Lane::make(layout, {.staging_bytes = 64 * kMiB}));
//   Stage& copy = lane->own(...);
//   SLUICE_TRY_ASSIGN(std::unique_ptr<Stage> checksum, make_checksum(*lane, direction, ...));
//   lane->run(Route{&copy, checksum.get(), &store}.towards(direction), ...)
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "pipeline/arena.h"
#include "pipeline/lane_world.h"
#include "pipeline/layout.h"
#include "pipeline/pipeline.h"
#include "pipeline/reactor.h"
#include "pipeline/slot.h"
#include "pipeline/stage.h"
#include "pipeline/trace.h"

namespace sluice {

// Which stages chunks pass, in which order. Value type; the stages are borrowed.
class Route {
 public:
  // As a dump passes them: from the BOs to the store. Null ones are left out. REQUIRES: at most kMaxStages.
  Route(std::initializer_list<Stage*> stages);

  // The same way, or, for a restore, back.
  Route towards(Direction direction) const;
  std::span<Stage* const> stages() const { return {stages_.data(), count_}; }

 private:
  std::array<Stage*, kMaxStages> stages_{};
  std::size_t count_ = 0;
};

struct LaneOptions {
  std::uint64_t staging_bytes = 0;  // slots_in() these, but no more than there are chunks
  int numa_node = -1;               // that the staging memory should be on; -1: any
};

// Thread-bound: made, used and destroyed by one thread, after unshare(CLONE_FS) where a ring may be made
// (lane_thread.h).
class Lane {
 public:
  // `layout` and `world` are borrowed for the lane's life. Errors: those of StagingArena::make and
  // LaneWorld::make_reactor.
  static Result<std::unique_ptr<Lane>> make(const ImageLayout& layout, const LaneOptions& options,
                                            LaneWorld& world = LaneWorld::real());
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane();

  const ImageLayout& layout() const { return layout_; }
  StagingArena& arena() { return arena_; }
  Reactor& reactor() { return *reactor_; }
  std::span<Slot> slots() { return slots_; }
  std::uint32_t slot_count() const { return arena_.slots(); }
  // What the reactor could not get, and why; empty if it got everything.
  const std::string& note() const { return note_; }

  // The stage lives for as long as the lane, but no longer than what the lane has: it may use all of that,
  // and stages that came before it.
  template <class S>
  S& own(std::unique_ptr<S> stage) {
    S& its = *stage;
    stages_.push_back(std::move(stage));
    return its;
  }
  // As Pipeline::run, which see. `trace` (may be null): see Pipeline::trace_into.
  // REQUIRES: no run before has failed.
  Result<PipelineStats> run(const Route& route, const ProgressFn& progress = nullptr,
                            const std::function<bool()>& cancelled = nullptr, Trace* trace = nullptr);

 private:
  Lane(const ImageLayout& layout, LaneWorld& world, StagingArena arena, std::unique_ptr<Reactor> reactor,
       std::string note);

  const ImageLayout& layout_;
  LaneWorld& world_;
  StagingArena arena_;
  std::vector<Slot> slots_;  // of the arena; a reactor that failed may still have operations of theirs
  std::unique_ptr<Reactor> reactor_;
  const ArenaKeeper keeper_{arena_, *reactor_};
  const std::string note_;
  std::vector<std::unique_ptr<Stage>> stages_;
};

}  // namespace sluice
