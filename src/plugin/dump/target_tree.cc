// SPDX-License-Identifier: MIT
#include "plugin/dump/target_tree.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "plugin/host/criu_host.h"
#include "proc/mapped_files.h"
#include "proc/processes.h"

namespace sluice::plugin {

Result<std::vector<pid_t>> TargetTree::processes() const {
  SLUICE_TRY_ASSIGN(std::vector<pid_t> pids, kfd::traced_processes());
  if (!tasks_.empty()) std::erase_if(pids, [this](pid_t pid) { return !tasks_.contains(pid); });
  return pids;
}

bool TargetTree::is_ours(dev_t device) const {
  const kfd::FileClass file = kfd::classify_device(S_IFCHR, device, kfd_device_);
  return file.kind == kfd::FileKind::Kfd || (file.kind == kfd::FileKind::RenderNode &&
                                             topology_.find_render_minor(file.render_minor) != nullptr);
}

// /dev/kfd and the render nodes of its GPUs.
std::vector<dev_t> TargetTree::devices() const {
  std::vector<dev_t> devices{kfd_device_};
  for (const kfd::Node& node : topology_.nodes) {
    if (node.is_gpu()) devices.push_back(kfd::render_node_device(node.drm_render_minor));
  }
  return devices;
}

Result<std::vector<TakenFile>> TargetTree::take_files() const {
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> pids, processes());
  SLUICE_TRY_ASSIGN(const std::vector<kfd::OpenFile> files, kfd::open_device_files(pids, devices()));
  std::vector<TakenFile> taken;
  for (const kfd::OpenFile& file : files) {
    SLUICE_TRY_ASSIGN(UniqueFd own, kfd::take_file(file));
    taken.push_back({kfd::classify_device(S_IFCHR, file.device, kfd_device_), std::move(own),
                     kfd::processes_of(file.holders)});
  }
  return taken;
}

Result<TakenFile> TargetTree::take_file(int fd, kfd::FileClass device) const {
  UniqueFd own(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own) return make_error(errno, "dup of the target's fd");
  const bool is_kfd = device.kind == kfd::FileKind::Kfd;
  const dev_t number = is_kfd ? kfd_device_ : kfd::render_node_device(device.render_minor);
  SLUICE_TRY_ASSIGN(const std::vector<kfd::FileHolder> holders, kfd::holders_of(fd, number));
  return TakenFile{device, std::move(own), kfd::processes_of(holders)};
}

Result<std::vector<pid_t>> TargetTree::holders_of_dmabuf(int fd, ino_t inode) const {
  std::vector<pid_t> holders;
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> pids, processes());
  for (const pid_t pid : pids) {
    SLUICE_TRY_ASSIGN(const std::vector<kfd::DmaBufDescriptor> dmabufs, kfd::dmabuf_descriptors(pid));
    for (const kfd::DmaBufDescriptor& dmabuf : dmabufs) {
      if (dmabuf.inode != inode) continue;
      SLUICE_TRY_ASSIGN(const bool same, kfd::same_open_file({getpid(), fd}, {pid, dmabuf.fd}));
      if (same) holders.push_back(pid);
    }
  }
  return holders;
}

// CRIU names no process where it asks about a map, but all of the tree stand still by now: once is enough.
Result<void> TargetTree::check_kfd_maps() {
  if (std::exchange(kfd_maps_checked_, true)) return {};
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> pids, processes());
  for (const pid_t pid : pids) {
    SLUICE_TRY_ASSIGN(const std::vector<kfd::MappedFile> files, kfd::mapped_files(pid));
    const bool maps_kfd = std::any_of(
        files.begin(), files.end(), [&](const kfd::MappedFile& file) { return file.device == kfd_device_; });
    if (!maps_kfd) continue;
    SLUICE_TRY_ASSIGN(const std::vector<int> descriptors, kfd::device_descriptors(pid, kfd_device_));
    if (descriptors.empty()) {
      return Error{EINVAL, "process " + std::to_string(pid) +
                               " maps /dev/kfd but has no descriptor of it: what it has in the GPUs cannot "
                               "be reached; it must keep /dev/kfd open"};
    }
  }
  return {};
}

Result<void> TargetTree::check_maps_without_files() {
  if (std::exchange(maps_without_files_checked_, true)) return {};
  const std::vector<dev_t> ours = devices();
  bool any_files = false;
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> pids, processes());
  for (const pid_t pid : pids) {
    SLUICE_TRY_ASSIGN(const std::vector<kfd::DeviceDescriptor> files, kfd::device_descriptors(pid, ours));
    any_files = any_files || !files.empty();
    if (files.empty()) SLUICE_TRY(check_unmapped(pid));
  }
  if (any_files) return {};
  return Error{EINVAL,
               "a process of the tree maps a BO, and none has an open file of a GPU any more, without which "
               "none can be made again; who maps it must keep the file open"};
}

// Of a process that has no open file of ours.
Result<void> TargetTree::check_unmapped(pid_t pid) const {
  SLUICE_TRY_ASSIGN(const std::vector<kfd::DeviceMap> maps, kfd::device_maps(pid));
  for (const kfd::DeviceMap& map : maps) {
    if (map.device == kfd_device_ || !is_ours(map.device)) continue;
    return Error{EINVAL, "process " + std::to_string(pid) + " maps at " + hex(map.address) +
                             " a BO of renderD" + std::to_string(minor(map.device)) +
                             ", and has no open file of a GPU any more, without which none can be made again "
                             "for it; it must keep the file open"};
  }
  return {};
}

Result<std::map<std::uint32_t, std::vector<PluginMap>>> TargetTree::maps() const {
  std::map<std::uint32_t, std::vector<PluginMap>> tasks;
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> pids, processes());
  for (const pid_t pid : pids) {
    const std::optional<std::uint32_t> own_pid = kfd::restoring_process({pid}).innermost;
    if (!own_pid) continue;
    SLUICE_TRY_ASSIGN(const std::vector<kfd::DeviceMap> maps, kfd::device_maps(pid));
    for (const kfd::DeviceMap& map : maps) {
      if (is_ours(map.device)) tasks[*own_pid].push_back({map.address, map.offset});
    }
  }
  return tasks;
}

void TargetTree::name_unrestorable_maps() const {
  if (kfd_device_ == 0) return;
  const auto pids = processes();
  if (!pids) return;
  for (const pid_t pid : *pids) {
    const auto files = kfd::mapped_files(pid);
    if (!files) continue;
    const auto dma_buf = std::find_if(files->begin(), files->end(),
                                      [](const kfd::MappedFile& file) { return file.is_dma_buf(); });
    if (dma_buf == files->end()) continue;
    log_line(Level::Error, "process " + std::to_string(pid) + " maps a dma-buf, " + dma_buf->name + ", at " +
                               hex(dma_buf->address) +
                               ": CRIU cannot dump such a map, whatever the plugin; the process "
                               "must unmap it first");
  }
}

}  // namespace sluice::plugin
