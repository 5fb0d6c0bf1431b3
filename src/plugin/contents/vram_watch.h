// SPDX-License-Identifier: MIT
// Notices when a GPU loses its VRAM during a dump or a restore. When any process' work hangs, the kernel
// resets the GPU, which may lose all VRAM. Contexts created afterwards, such as those of lanes, copy whatever
// is there then, without an error.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "base/result.h"

namespace sluice::plugin {

inline constexpr std::size_t kMostWatchedGpus = 256;

// Any thread, and any process if it lies in memory that they share.
class VramWatch {
 public:
  // `losses`: the count of GPU `render_minor` now (drm::vram_losses). Errors: EIO if it differs from the
  // first one; E2BIG: more GPUs than kMostWatchedGpus.
  Result<void> look(std::uint32_t render_minor, std::uint32_t losses);

  // The GPUs that were looked at so far.
  std::vector<std::uint32_t> render_minors() const;

 private:
  // Each: a GPU's minor plus one, above its first count. Free entries, 0, come last.
  std::array<std::atomic<std::uint64_t>, kMostWatchedGpus> seen_{};
};

}  // namespace sluice::plugin
