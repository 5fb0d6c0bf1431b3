// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstring>

#include "base/units.h"
#include "engine/copy_engine.h"
#include "engine/timed_stage.h"

namespace sluice::bench {
namespace {

class GhostEngine final : public CopyEngine {
 public:
  GhostEngine(Contents contents, double bytes_per_second)
      : CopyEngine(std::move(contents)), bytes_per_second_(bytes_per_second), block_(kMiB) {
    fill(block_, Contents{{block_.size()}});
  }

  const char* name() const override { return "ghost"; }

  Result<std::unique_ptr<Stage>> make_stage(Direction direction, const ImageLayout& layout,
                                            StagingArena& arena, std::span<Slot> /*slots*/,
                                            Reactor& reactor) override {
    if (direction == Direction::Dump) {
      for (std::uint32_t i = 0; i < arena.slots(); ++i) fill_buffer(arena.buffer(i), layout.payload_bytes());
    }
    SLUICE_TRY_ASSIGN(std::unique_ptr<Stage> stage, TimedStage::make("copy", bytes_per_second_, reactor));
    return stage;
  }
  Result<void> scribble() override { return {}; }
  Result<bool> intact() override { return true; }

 private:
  // Whichever buffer gets the first chunk, the file begins with its header.
  void fill_buffer(std::span<std::byte> buffer, std::uint64_t header) const {
    for (std::size_t at = 0; at < buffer.size(); at += block_.size())
      std::memcpy(&buffer[at], block_.data(), std::min(block_.size(), buffer.size() - at));
    std::memcpy(buffer.data(), &header, sizeof header);
  }

  double bytes_per_second_;
  std::vector<std::byte> block_;  // repeated contents of staging buffers on dump: not zeros
};

}  // namespace

Result<std::unique_ptr<CopyEngine>> make_ghost_engine(Contents contents, double bytes_per_second) {
  return std::unique_ptr<CopyEngine>(std::make_unique<GhostEngine>(std::move(contents), bytes_per_second));
}

}  // namespace sluice::bench
