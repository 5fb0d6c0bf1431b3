// SPDX-License-Identifier: MIT
#include <algorithm>

#include "engine/copy_engine.h"
#include "engine/timed_stage.h"

namespace sluice::bench {
namespace {

class GhostEngine final : public CopyEngine {
 public:
  GhostEngine(Contents contents, double bytes_per_second)
      : CopyEngine(std::move(contents)), bytes_per_second_(bytes_per_second) {}

  const char* name() const override { return "ghost"; }

  Result<std::unique_ptr<Stage>> make_stage(Direction direction, const ImageLayout& /*layout*/,
                                            StagingArena& arena, std::span<Slot> /*slots*/,
                                            Reactor& reactor) override {
    if (direction == Direction::Dump) fill(arena.bytes(), Contents{{arena.bytes().size()}, 0, 0, 1});
    SLUICE_TRY_ASSIGN(std::unique_ptr<Stage> stage, TimedStage::make("copy", bytes_per_second_, reactor));
    return stage;
  }
  Result<void> scribble() override { return {}; }
  Result<bool> intact() override { return true; }

 private:
  double bytes_per_second_;
};

}  // namespace

Result<std::unique_ptr<CopyEngine>> make_ghost_engine(Contents contents, double bytes_per_second) {
  return std::unique_ptr<CopyEngine>(std::make_unique<GhostEngine>(std::move(contents), bytes_per_second));
}

}  // namespace sluice::bench
