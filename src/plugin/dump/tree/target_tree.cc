// SPDX-License-Identifier: MIT
#include "plugin/dump/tree/target_tree.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/format.h"
#include "plugin/host/criu_host.h"
#include "proc/mapped_files.h"
#include "proc/processes.h"
#include "proc/task_status.h"

namespace sluice::plugin {

Result<std::vector<pid_t>> TargetTree::processes() const {
  SLUICE_TRY_ASSIGN(std::vector<pid_t> pids, proc::traced_processes());
  if (!tasks_.empty()) std::erase_if(pids, [this](pid_t pid) { return !tasks_.contains(pid); });
  return pids;
}

bool TargetTree::begins_with(const std::set<pid_t>& holders) const {
  const auto pids = processes();
  return pids && std::all_of(pids->begin(), pids->end(), [&](pid_t pid) {
           const auto status = proc::read_task_status("/proc/" + std::to_string(pid));
           const bool has_parent = status && std::binary_search(pids->begin(), pids->end(), status->parent);
           return has_parent || holders.contains(pid);
         });
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

Result<bool> TargetTree::has_files(pid_t pid) const {
  SLUICE_TRY_ASSIGN(const std::vector<proc::DeviceDescriptor> files,
                    proc::device_descriptors(pid, devices()));
  return !files.empty();
}

Result<std::vector<TakenFile>> TargetTree::take_files() const {
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> pids, processes());
  SLUICE_TRY_ASSIGN(const std::vector<proc::OpenFile> files, proc::open_device_files(pids, devices()));
  std::vector<TakenFile> taken;
  for (const proc::OpenFile& file : files) {
    SLUICE_TRY_ASSIGN(UniqueFd own, proc::take_file(file));
    taken.push_back({kfd::classify_device(S_IFCHR, file.device, kfd_device_), std::move(own),
                     proc::processes_of(file.holders)});
  }
  return taken;
}

Result<TreeFiles> TargetTree::take() const {
  TreeFiles open;
  SLUICE_TRY_ASSIGN(open.files, take_files());
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> pids, processes());
  SLUICE_TRY_ASSIGN(open.dmabufs, kfd::open_dmabufs(pids));
  return open;
}

Result<std::vector<pid_t>> TargetTree::holders_of_dmabuf(int fd, ino_t inode) const {
  std::vector<pid_t> holders;
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> pids, processes());
  for (const pid_t pid : pids) {
    SLUICE_TRY_ASSIGN(const std::vector<proc::DmaBufDescriptor> dmabufs, proc::dmabuf_descriptors(pid));
    for (const proc::DmaBufDescriptor& dmabuf : dmabufs) {
      if (dmabuf.inode != inode) continue;  // unreached: a race
      SLUICE_TRY_ASSIGN(const bool same, proc::same_open_file({getpid(), fd}, {pid, dmabuf.fd}));
      if (same) holders.push_back(pid);  // unreached: a race
    }
  }
  return holders;
}

// CRIU names no process when it asks about a map, but the whole tree is stopped by now: once is enough.
Result<void> TargetTree::check_kfd_maps() {
  if (std::exchange(kfd_maps_checked_, true)) return {};
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> pids, processes());
  for (const pid_t pid : pids) {
    SLUICE_TRY_ASSIGN(const std::vector<proc::MappedFile> files, proc::mapped_files(pid));
    const bool maps_kfd = std::any_of(
        files.begin(), files.end(), [&](const proc::MappedFile& file) { return file.device == kfd_device_; });
    if (!maps_kfd) continue;
    SLUICE_TRY_ASSIGN(const std::vector<int> descriptors, proc::device_descriptors(pid, kfd_device_));
    if (descriptors.empty()) {
      return Error{EINVAL, formatted("process {} maps /dev/kfd but has closed it, so its GPU state cannot be "
                                     "reached; start it without "
                                     "what closes all descriptors (closefrom, close_range) [SL-D55]",
                                     pid)};
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
    SLUICE_TRY_ASSIGN(const std::vector<proc::DeviceDescriptor> files, proc::device_descriptors(pid, ours));
    any_files = any_files || !files.empty();
    if (files.empty()) SLUICE_TRY(check_unmapped(pid));
  }
  if (any_files) return {};
  return Error{EINVAL,
               "a process of the tree maps a BO, but no process of the tree has a file of a GPU open; the "
               "process must "
               "keep its file open [SL-D56]"};
}

// For a process without an open file of ours.
Result<void> TargetTree::check_unmapped(pid_t pid) const {
  SLUICE_TRY_ASSIGN(const std::vector<proc::DeviceMap> maps, proc::device_maps(pid));
  for (const proc::DeviceMap& map : maps) {
    if (map.device == kfd_device_ || !is_ours(map.device)) continue;
    return Error{
        EINVAL,
        formatted(
            "process {} maps at {:#x} a BO of renderD{} but has no file of a GPU open; it must keep its "
            "file open, or unmap the BO [SL-D57]",
            pid, map.address, minor(map.device))};
  }
  return {};
}

Result<std::map<std::uint32_t, std::vector<PluginMap>>> TargetTree::maps() const {
  std::map<std::uint32_t, std::vector<PluginMap>> tasks;
  SLUICE_TRY_ASSIGN(const std::vector<pid_t> pids, processes());
  for (const pid_t pid : pids) {
    const std::optional<std::uint32_t> own_pid = proc::restoring_process({pid}).innermost;
    if (!own_pid) continue;
    SLUICE_TRY_ASSIGN(const std::vector<proc::DeviceMap> maps, proc::device_maps(pid));
    for (const proc::DeviceMap& map : maps) {
      if (is_ours(map.device)) tasks[*own_pid].push_back({map.address, map.offset});
    }
  }
  return tasks;
}

void TargetTree::name_unrestorable_maps() const {
  if (kfd_device_ == 0) return;
  const auto pids = processes();
  if (!pids) return;  // unreached: a race
  for (const pid_t pid : *pids) {
    const auto files = proc::mapped_files(pid);
    if (!files) continue;  // unreached: a race
    const auto dma_buf = std::find_if(files->begin(), files->end(),
                                      [](const proc::MappedFile& file) { return file.is_dma_buf(); });
    if (dma_buf == files->end()) continue;
    log_line(Level::Error,
             formatted(
                 "process {} maps a dma-buf, {}, at {:#x}, which CRIU cannot dump; the process must unmap it "
                 "[SL-D58]",
                 pid, dma_buf->name, dma_buf->address));
  }
}

}  // namespace sluice::plugin
