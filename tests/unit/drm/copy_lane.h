// SPDX-License-Identifier: MIT
// A lane around the copy stage: target BOs on one side, an image in memory on the other, the real pipeline
// between. Thread-bound.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "drm/sdma_copy.h"
#include "pipeline/pipeline.h"
#include "support/lane.h"
#include "support/serial_writer.h"
#include "target.h"

namespace sluice::drm {

using test::Bytes;
using test::LaneMemory;
using test::ReactorKind;

// The store's place on the route: keeps the image in memory. As a source it reports zero units as holes, and
// fills their buffers with junk: a hole's bytes are undefined.
class MemoryStore final : public Stage {
 public:
  MemoryStore(Direction direction, const ImageLayout& layout, Reactor& reactor, Bytes& image, bool holes)
      : direction_(direction), layout_(layout), reactor_(reactor), image_(image), holes_(holes) {
    image_.resize(static_cast<std::size_t>(layout.file_bytes()));
  }
  const char* name() const override { return "store"; }
  Result<Submit> submit(Slot& slot) override;
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override;

 private:
  Direction direction_;
  const ImageLayout& layout_;
  Reactor& reactor_;
  Bytes& image_;
  bool holes_;
};

struct CopyLaneOptions {
  std::uint64_t chunk_bytes = 256 * 1024;
  std::uint32_t slots = 4;
  ReactorKind reactor = ReactorKind::Threads;
  bool holes = true;
  std::uint32_t cursors = 1;
  SdmaCopyOptions copy;
  test::TestWorld::Wrap wrap;  // of the reactor
};

struct CopyOutcome {
  Result<void> result;
  SdmaCopyStats stats;
  Staging staging = Staging::Userptr;
  std::string note;
  bool abandoned = false;  // the arena
};

// Whatever fails is in the outcome's result: making the stage, the run, finish().
CopyOutcome run_copy(const Device& device, Direction direction, const TargetFile& target,
                     const std::vector<TargetBo>& bos, Bytes& image, const CopyLaneOptions& options = {});

// The image that the serial algorithm writes of these BOs.
Bytes serial_image(const std::vector<TargetBo>& bos);

}  // namespace sluice::drm
