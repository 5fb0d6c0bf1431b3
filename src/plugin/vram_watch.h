// SPDX-License-Identifier: MIT
// Whether GPUs keep what is in their VRAM for as long as a dump or a restore takes. The kernel answers a hang
// of anybody's work with a reset that may cost the GPU all of it; contexts that are made afterwards, as those
// of lanes are, copy what is there then, without an error.
#pragma once

#include <cstdint>
#include <map>

#include "pipeline/mutex.h"
#include "pipeline/result.h"

namespace sluice::plugin {

// Any thread.
class VramWatch {
 public:
  // `losses`: what GPU `render_minor` says now (drm::vram_losses). Errors: EIO where it said something else
  // the first time.
  Result<void> look(std::uint32_t render_minor, std::uint32_t losses);

 private:
  Mutex mutex_;
  std::map<std::uint32_t, std::uint32_t> losses_ SLUICE_GUARDED_BY(mutex_);  // by render minor
};

}  // namespace sluice::plugin
