// SPDX-License-Identifier: MIT
#include "plugin/vram_watch.h"

#include <cerrno>
#include <string>

namespace sluice::plugin {

Result<void> VramWatch::look(std::uint32_t render_minor, std::uint32_t losses) {
  const Lock lock(mutex_);
  if (losses_.try_emplace(render_minor, losses).first->second == losses) return {};
  return Error{EIO, "the GPU of renderD" + std::to_string(render_minor) +
                        " was reset meanwhile and has lost what was in its VRAM, of all its processes; "
                        "checkpoints that were made before have it"};
}

}  // namespace sluice::plugin
