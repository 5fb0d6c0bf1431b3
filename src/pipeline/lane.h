// SPDX-License-Identifier: MIT
// A lane carries the chunks of one layout from the first stage to the last. It owns staging arena, slots,
// reactor, stages and loop, and destroys the stages before the parts that they use.
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
#include "pipeline/reactor/reactor.h"
#include "pipeline/slot.h"
#include "pipeline/stage.h"
#include "pipeline/trace.h"

namespace sluice {

// Which stages chunks pass, and their order. Value type; the stages are borrowed.
class Route {
 public:
  // In a dump's order: from the BOs to the store. Null ones are left out. REQUIRES: at most kMaxStages.
  Route(std::initializer_list<Stage*> stages);

  // The same order or, for a restore, the reverse.
  Route towards(Direction direction) const;
  std::span<Stage* const> stages() const { return {stages_.data(), count_}; }

 private:
  std::array<Stage*, kMaxStages> stages_{};
  std::size_t count_ = 0;
};

struct LaneOptions {
  std::uint64_t staging_bytes = 0;  // slots_in() of it, but at most one per chunk
  int numa_node = -1;               // preferred for the staging memory; -1: any
  std::uint32_t cursors = 1;        // of its walk (chunk_walk.h), at most kMostCursors
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
  LaneWorld& world() const { return world_; }
  StagingArena& arena() { return arena_; }
  Reactor& reactor() { return *reactor_; }
  std::span<Slot> slots() { return slots_; }
  std::uint32_t slot_count() const { return arena_.slots(); }
  // What the reactor lacks, and why; empty if nothing.
  const std::string& note() const { return note_; }

  // The stage lives as long as the lane, but not longer than the lane's parts: it may use all of them, and
  // earlier stages.
  template <class S>
  S& own(std::unique_ptr<S> stage) {
    S& its = *stage;
    stages_.push_back(std::move(stage));
    return its;
  }
  // See Pipeline::run. `trace` (may be null): see Pipeline::trace_into. REQUIRES: no earlier run has failed.
  Result<PipelineStats> run(const Route& route, const ProgressFn& progress = nullptr,
                            const std::function<bool()>& cancelled = nullptr, Trace* trace = nullptr);

 private:
  Lane(const ImageLayout& layout, LaneWorld& world, StagingArena arena, std::unique_ptr<Reactor> reactor,
       std::string note, std::uint32_t cursors);

  const ImageLayout& layout_;
  LaneWorld& world_;
  StagingArena arena_;
  std::vector<Slot> slots_;  // of the arena; a failed reactor may still have operations on them
  std::unique_ptr<Reactor> reactor_;
  const ArenaKeeper keeper_{arena_, *reactor_};
  const std::string note_;
  const std::uint32_t cursors_;
  std::vector<std::unique_ptr<Stage>> stages_;
};

}  // namespace sluice
