// SPDX-License-Identifier: MIT
// What lanes of contents have around them: that of every lane, and GPUs. In production the machine's; a
// simulation hands in another.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "drm/sdma_copy.h"
#include "pipeline/lane.h"
#include "pipeline/lane_world.h"

namespace sluice::plugin {

struct GpuContents;

// A lane's copy stage.
struct GpuCopy {
  std::unique_ptr<Stage> stage;
  std::string note;                // why it is slower than it should be, or empty
  std::uint64_t pinned_bytes = 0;  // staging registered with the GPU
};

// The GPU of one lane. Of the lane's thread, and outlives the lane.
class LaneGpu {
 public:
  virtual ~LaneGpu() = default;

  // As drm::Device says.
  virtual Result<std::uint32_t> vram_losses() = 0;
  // As drm::SdmaCopy::make. Call once.
  virtual Result<GpuCopy> make_copy(Direction direction, Lane& lane, std::vector<drm::BoSource> bos,
                                    const drm::SdmaCopyOptions& options) = 0;
};

// Any thread. What is not overridden is the machine's.
class ContentsWorld : public LaneWorld {
 public:
  static ContentsWorld& real();

  // The GPU that has `contents`; called by the lane's thread. Errors: those of drm::Device::open.
  virtual Result<std::unique_ptr<LaneGpu>> open_gpu(const GpuContents& contents);

 protected:
  ~ContentsWorld() = default;
};

}  // namespace sluice::plugin
