// SPDX-License-Identifier: MIT
#include "plugin/dump/files/render_maps.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <iterator>
#include <map>

#include "base/format.h"
#include "kfd/uapi.h"
#include "proc/mapped_files.h"
#include "proc/processes.h"

namespace sluice::plugin {

namespace {

Error unknown_bo(pid_t pid, const proc::DeviceMap& map) {
  return Error{
      EINVAL,
      formatted(
          "process {} maps at {:#x} a BO of renderD{} that none of its files lists; it must keep the file "
          "open that the BO comes from, or needs Linux 6.18 or newer [SL-D54]",
          pid, map.address, minor(map.device))};
}

bool holds(const BoRanges& ranges, std::uint32_t minor, std::uint64_t offset) {
  const auto after = ranges.upper_bound({minor, offset});
  if (after == ranges.begin()) return false;  // unreached: a guard
  const auto& [begin, end] = *std::prev(after);
  return begin.first == minor && offset < end;
}

}  // namespace

Result<void> check_render_maps(const std::map<pid_t, BoRanges>& known, const kfd::Topology& topology,
                               const std::vector<pid_t>& processes) {
  for (const pid_t pid : processes) {
    const auto own = known.find(pid);
    SLUICE_TRY_ASSIGN(const std::vector<proc::DeviceMap> maps, proc::device_maps(pid));
    for (const proc::DeviceMap& map : maps) {
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
