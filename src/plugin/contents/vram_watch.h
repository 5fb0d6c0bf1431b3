// SPDX-License-Identifier: MIT
// Whether GPUs keep what is in their VRAM for as long as a dump or a restore takes. The kernel answers a hang
// of anybody's work with a reset that may cost the GPU all of it; contexts that are made afterwards, as those
// of lanes are, copy what is there then, without an error.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "base/result.h"

namespace sluice::plugin {

inline constexpr std::size_t kMostWatchedGpus = 256;

// Any thread, and any process, where it lies in memory that several share.
class VramWatch {
 public:
  // `losses`: what GPU `render_minor` says now (drm::vram_losses). Errors: EIO where it said something else
  // the first time; E2BIG: more GPUs than that.
  Result<void> look(std::uint32_t render_minor, std::uint32_t losses);

  // Of the GPUs that were looked at so far.
  std::vector<std::uint32_t> render_minors() const;

 private:
  // Each a GPU's minor plus one, above what it said the first time. Those that are free, 0, come last.
  std::array<std::atomic<std::uint64_t>, kMostWatchedGpus> seen_{};
};

}  // namespace sluice::plugin
