// SPDX-License-Identifier: MIT
#include "plugin/render_maps.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <iterator>
#include <map>

#include "kfd/mapped_files.h"
#include "kfd/processes.h"
#include "kfd/uapi.h"

namespace sluice::plugin {

namespace {

Error unknown_bo(pid_t pid, const kfd::DeviceMap& map) {
  return Error{
      EINVAL,
      "process " + std::to_string(pid) + " maps at " + hex(map.address) + " a BO of renderD" +
          std::to_string(minor(map.device)) +
          " that neither the KFD nor any of its render files lists; before Linux 6.18 no kernel tells "
          "of BOs allocated or imported through a render node"};
}

}  // namespace

Result<void> check_render_maps(const BoRanges& known, const kfd::Topology& topology,
                               const std::vector<pid_t>& processes) {
  for (const pid_t pid : processes) {
    SLUICE_TRY_ASSIGN(const std::vector<kfd::DeviceMap> maps, kfd::device_maps(pid));
    for (const kfd::DeviceMap& map : maps) {
      const kfd::FileClass file = kfd::classify_device(S_IFCHR, map.device, 0);
      if (file.kind != kfd::FileKind::RenderNode || topology.find_render_minor(file.render_minor) == nullptr)
        continue;
      const auto after = known.upper_bound({file.render_minor, map.offset});
      if (after == known.begin()) return unknown_bo(pid, map);
      const auto& [begin, end] = *std::prev(after);
      if (begin.first != file.render_minor || end <= map.offset) return unknown_bo(pid, map);
    }
  }
  return {};
}

Result<std::vector<pid_t>> processes_without_kfd(const std::vector<pid_t>& pids, dev_t kfd_device) {
  std::vector<pid_t> without;
  for (const pid_t pid : pids) {
    SLUICE_TRY_ASSIGN(const std::vector<int> descriptors, kfd::device_descriptors(pid, kfd_device));
    if (descriptors.empty()) without.push_back(pid);
  }
  return without;
}

}  // namespace sluice::plugin
