// SPDX-License-Identifier: MIT
#include "plugin/contents/contents_world.h"

#include <utility>

#include "drm/device.h"
#include "plugin/contents/contents_job.h"

namespace sluice::plugin {
namespace {

class RenderNode final : public LaneGpu {
 public:
  explicit RenderNode(drm::Device device) : device_(std::move(device)) {}

  Result<std::uint32_t> vram_losses() override { return device_.vram_losses(); }
  Result<GpuCopy> make_copy(Direction direction, Lane& lane, std::vector<UniqueFd> dmabufs,
                            const drm::SdmaCopyOptions& options) override {
    SLUICE_TRY_ASSIGN(std::unique_ptr<drm::SdmaCopy> copy,
                      drm::SdmaCopy::make(device_, direction, lane.layout(), std::move(dmabufs), lane.arena(),
                                          lane.slots(), lane.reactor(), options));
    GpuCopy made{nullptr, copy->staging_note(), copy->stats().pinned_bytes};
    made.stage = std::move(copy);
    return made;
  }

 private:
  drm::Device device_;
};

}  // namespace

ContentsWorld& ContentsWorld::real() {
  static ContentsWorld world;
  return world;
}

Result<std::unique_ptr<LaneGpu>> ContentsWorld::open_gpu(const LaneContents& contents) {
  SLUICE_TRY_ASSIGN(drm::Device device, drm::Device::open(contents.render_minor));
  return std::unique_ptr<LaneGpu>(std::make_unique<RenderNode>(std::move(device)));
}

}  // namespace sluice::plugin
