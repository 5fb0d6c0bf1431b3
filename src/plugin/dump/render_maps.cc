// SPDX-License-Identifier: MIT
#include "plugin/dump/render_maps.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <iterator>
#include <map>

#include "kfd/uapi.h"
#include "proc/mapped_files.h"
#include "proc/processes.h"

namespace sluice::plugin {

namespace {

Error unknown_bo(pid_t pid, const kfd::DeviceMap& map) {
  return Error{EINVAL,
               "process " + std::to_string(pid) + " maps at " + hex(map.address) + " a BO of renderD" +
                   std::to_string(minor(map.device)) +
                   " that neither its KFD nor any of its own render files lists: one that it has "
                   "inherited, or whose file it has closed, or of a kernel before 6.18, which does not "
                   "tell of BOs allocated or imported through a render node"};
}

bool holds(const BoRanges& ranges, std::uint32_t minor, std::uint64_t offset) {
  const auto after = ranges.upper_bound({minor, offset});
  if (after == ranges.begin()) return false;
  const auto& [begin, end] = *std::prev(after);
  return begin.first == minor && offset < end;
}

}  // namespace

Result<void> check_render_maps(const std::map<pid_t, BoRanges>& known, const kfd::Topology& topology,
                               const std::vector<pid_t>& processes) {
  for (const pid_t pid : processes) {
    const auto own = known.find(pid);
    SLUICE_TRY_ASSIGN(const std::vector<kfd::DeviceMap> maps, kfd::device_maps(pid));
    for (const kfd::DeviceMap& map : maps) {
      const kfd::FileClass file = kfd::classify_device(S_IFCHR, map.device, 0);
      if (file.kind != kfd::FileKind::RenderNode || topology.find_render_minor(file.render_minor) == nullptr)
        continue;
      if (own == known.end() || !holds(own->second, file.render_minor, map.offset))
        return unknown_bo(pid, map);
    }
  }
  return {};
}

}  // namespace sluice::plugin
