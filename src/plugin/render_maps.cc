// SPDX-License-Identifier: MIT
#include "plugin/render_maps.h"

#include <sys/sysmacros.h>

#include <iterator>
#include <map>

#include "kfd/mapped_files.h"
#include "kfd/processes.h"
#include "kfd/uapi.h"

namespace sluice::plugin {

namespace {

constexpr unsigned kDrmMajor = 226;

Error unlisted_bo(pid_t pid, const kfd::DeviceMap& map) {
  return Error{EINVAL, "process " + std::to_string(pid) + " maps at " + hex(map.address) +
                           " a BO of renderD" + std::to_string(minor(map.device)) +
                           " that the KFD does not know; BOs allocated or imported through a render node are "
                           "not supported yet"};
}

}  // namespace

Result<void> check_render_maps(const kfd::Checkpoint& checkpoint, const kfd::Topology& topology,
                               const std::vector<pid_t>& holders) {
  std::map<std::uint64_t, std::uint64_t> ends;  // of the KFD's BOs, by mmap offset
  for (const kfd::CheckpointBo& bo : checkpoint.bos) ends.emplace(bo.offset, bo.offset + bo.bytes);
  for (const pid_t pid : holders) {
    SLUICE_TRY_ASSIGN(const std::vector<kfd::DeviceMap> maps, kfd::device_maps(pid));
    for (const kfd::DeviceMap& map : maps) {
      if (major(map.device) != kDrmMajor || topology.find_render_minor(minor(map.device)) == nullptr)
        continue;
      const auto after = ends.upper_bound(map.offset);
      if (after == ends.begin() || std::prev(after)->second <= map.offset) return unlisted_bo(pid, map);
    }
  }
  return {};
}

Result<void> check_render_maps_without_kfd(int fd, std::uint32_t render_minor, dev_t kfd_device) {
  const dev_t device = makedev(kDrmMajor, render_minor);
  SLUICE_TRY_ASSIGN(const std::vector<kfd::FileHolder> holders, kfd::holders_of(fd, device));
  for (const pid_t pid : kfd::processes_of(holders)) {
    SLUICE_TRY_ASSIGN(const std::vector<int> descriptors, kfd::device_descriptors(pid, kfd_device));
    if (!descriptors.empty()) continue;
    SLUICE_TRY_ASSIGN(const std::vector<kfd::DeviceMap> maps, kfd::device_maps(pid));
    for (const kfd::DeviceMap& map : maps) {
      if (map.device == device) return unlisted_bo(pid, map);
    }
  }
  return {};
}

}  // namespace sluice::plugin
