// SPDX-License-Identifier: MIT
#include "kfd/driver.h"

#include <algorithm>
#include <fstream>

#include "base/device_node.h"
#include "kfd/criu_ops.h"
#include "kfd/device.h"
#include "kfd/topology.h"

namespace sluice::kfd {

std::string out_of_tree_version(const std::string& path) {
  std::string version;
  std::ifstream file(path);
  std::getline(file, version);
  return version;
}

Result<std::uint32_t> ask_bo_record_bytes(dev_t kfd) {
  SLUICE_TRY_ASSIGN(const KfdDevice own, KfdDevice::open(kfd));
  SLUICE_TRY_ASSIGN(const Topology local, read_topology());
  const auto gpu =
      std::find_if(local.nodes.begin(), local.nodes.end(), [](const Node& node) { return node.is_gpu(); });
  if (gpu == local.nodes.end()) return make_error(ENODEV, "no GPU");  // unreached: no test
  SLUICE_TRY_ASSIGN(const UniqueFd render,
                    open_device_node("/dev/dri/renderD" + std::to_string(gpu->drm_render_minor),
                                     render_node_device(gpu->drm_render_minor)));
  return probe_bo_record_bytes(own, gpu->gpu_id, render.get());
}

}  // namespace sluice::kfd
