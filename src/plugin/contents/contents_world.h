// SPDX-License-Identifier: MIT
// What lanes of contents use beyond the LaneWorld of every lane: GPUs. In production the machine's; a
// simulation passes its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "drm/sdma_copy.h"
#include "pipeline/lane.h"
#include "pipeline/lane_world.h"

namespace sluice::plugin {

struct LaneContents;

// A lane's copy stage.
struct GpuCopy {
  std::unique_ptr<Stage> stage;
  std::string note;                // why it is slower than expected, or empty
  std::uint64_t pinned_bytes = 0;  // staging registered with the GPU
};

// The GPU of one lane. Used by the lane's thread; outlives the lane.
class LaneGpu {
 public:
  virtual ~LaneGpu() = default;

  // See drm::Device.
  virtual Result<std::uint32_t> vram_losses() = 0;
  // See drm::SdmaCopy::make. Call once.
  virtual Result<GpuCopy> make_copy(Direction direction, Lane& lane, std::vector<UniqueFd> dmabufs,
                                    const drm::SdmaCopyOptions& options) = 0;
};

// Any thread. The defaults are the real machine's.
class ContentsWorld : public LaneWorld {
 public:
  static ContentsWorld& real();

  // The GPU that has `contents`; called by the lane's thread. Errors: those of drm::Device::open.
  virtual Result<std::unique_ptr<LaneGpu>> open_gpu(const LaneContents& contents);

 protected:
  ~ContentsWorld() = default;
};

}  // namespace sluice::plugin
