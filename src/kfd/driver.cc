// SPDX-License-Identifier: MIT
#include "kfd/driver.h"

#include <fstream>
#include <utility>
#include <vector>

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
  std::vector<UniqueFd> files;
  std::vector<GpuFile> gpus;
  for (const Node& node : local.nodes) {
    if (!node.is_gpu()) continue;
    SLUICE_TRY_ASSIGN(UniqueFd render,
                      open_device_node("/dev/dri/renderD" + std::to_string(node.drm_render_minor),
                                       render_node_device(node.drm_render_minor)));
    gpus.push_back({node.gpu_id, render.get()});
    files.push_back(std::move(render));
  }
  return probe_bo_record_bytes(own, gpus);
}

}  // namespace sluice::kfd
