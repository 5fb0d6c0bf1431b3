// SPDX-License-Identifier: MIT
// The attributes of a GPU's PCI device that change while programs run. See front.h.
#include <cstdio>
#include <cstring>

#include "front.h"
#include "local.h"
#include "raw.h"

namespace vamdgpu {

bool memory_in_use(const char* path, std::uint64_t* bytes) {
  const char* const slash = std::strrchr(path, '/');
  if (slash == nullptr) return false;
  vam_pool pool = VAM_POOL_NONE;
  if (std::strcmp(slash + 1, "mem_info_vram_used") == 0) pool = VAM_POOL_VRAM;
  if (std::strcmp(slash + 1, "mem_info_gtt_used") == 0) pool = VAM_POOL_GTT;
  const Local* const machine = pool != VAM_POOL_NONE ? local() : nullptr;
  if (machine == nullptr) return false;
  const Locked locked(machine->shared->lock);
  vam_model* const model = machine->model();
  for (std::uint32_t gpu = 0; gpu < model->num_gpus; ++gpu) {
    char node[4200];
    std::snprintf(node, sizeof node, "%.*s/drm/renderD%u", static_cast<int>(slash - path), path,
                  model->gpu[gpu].config.render_minor);
    struct stat ignored;
    if (raw::fstatat(AT_FDCWD, node, &ignored, 0) != 0) continue;
    reap(machine->shared, machine->directory, true);
    *bytes = model->gpu[gpu].used_bytes[pool];
    return true;
  }
  return false;
}

}  // namespace vamdgpu
