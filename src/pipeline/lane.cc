// SPDX-License-Identifier: MIT
#include "pipeline/lane.h"

#include <algorithm>
#include <cassert>

#include "base/units.h"

namespace sluice {

Route::Route(std::initializer_list<Stage*> stages) {
  for (Stage* const stage : stages) {
    if (stage == nullptr) continue;
    assert(count_ < stages_.size());
    stages_[count_++] = stage;
  }
}

Route Route::towards(Direction direction) const {
  Route route = *this;
  if (direction == Direction::Restore)
    std::reverse(route.stages_.begin(), route.stages_.begin() + static_cast<std::ptrdiff_t>(count_));
  return route;
}

Result<std::unique_ptr<Lane>> Lane::make(const ImageLayout& layout, const LaneOptions& options,
                                         LaneWorld& world) {
  const auto slots = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(slots_in(options.staging_bytes, layout.chunk_bytes()), layout.chunk_count()));
  SLUICE_TRY_ASSIGN(StagingArena arena, StagingArena::make(align_up(layout.chunk_bytes(), kBufferAlignment),
                                                           slots, options.numa_node));
  std::string note;
  SLUICE_TRY_ASSIGN(std::unique_ptr<Reactor> reactor,
                    world.make_reactor(slots * static_cast<unsigned>(kOpsPerSlot), arena.bytes(), note));
  return std::unique_ptr<Lane>(
      new Lane(layout, world, std::move(arena), std::move(reactor), std::move(note), options.cursors));
}

Lane::Lane(const ImageLayout& layout, LaneWorld& world, StagingArena arena, std::unique_ptr<Reactor> reactor,
           std::string note, std::uint32_t cursors)
    : layout_(layout),
      world_(world),
      arena_(std::move(arena)),
      slots_(slots_of(arena_)),
      reactor_(std::move(reactor)),
      note_(std::move(note)),
      cursors_(cursors) {
  assert(cursors_ <= kMostCursors);
  for (Slot& slot : slots_) slot.buffer = slot.buffer.first(static_cast<std::size_t>(layout.chunk_bytes()));
}

Lane::~Lane() {
  while (!stages_.empty()) stages_.pop_back();  // the last one first
}

Result<PipelineStats> Lane::run(const Route& route, const ProgressFn& progress,
                                const std::function<bool()>& cancelled, Trace* trace) {
  Pipeline pipeline(layout_, slots_, route.stages(), *reactor_, cursors_);
  if (trace != nullptr) pipeline.trace_into(*trace);
  return pipeline.run(progress, [&] {
    world_.step(pipeline);
    return cancelled && cancelled();
  });
}

}  // namespace sluice
