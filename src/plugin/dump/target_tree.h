// SPDX-License-Identifier: MIT
// The processes that CRIU dumps, all of which stand still: who they are, which files of GPUs they have open,
// and which of their maps of GPUs can be restored.
//
// Looks only. Main thread, the one that traces them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "kfd/device.h"
#include "kfd/topology.h"
#include "plugin/host/map_runs.h"

namespace sluice::plugin {

// An open file of a device of ours that we have a descriptor of, and the processes that hold it.
struct TakenFile {
  kfd::FileClass device;
  UniqueFd own;
  std::vector<pid_t> holders;
};

class TargetTree {
 public:
  // `kfd_device`: 0 where this machine has no KFD; then nothing is asked. `topology` is borrowed.
  TargetTree(dev_t kfd_device, const kfd::Topology& topology)
      : kfd_device_(kfd_device), topology_(topology) {}

  // CRIU traces more where it freezes a cgroup, and dumps none of these.
  void add(pid_t pid) { tasks_.insert(pid); }
  // Ascending. Where the host is older than PAUSE_DEVICES, which names them: all that it traces, and what it
  // does not ask for is nobody's at the end.
  Result<std::vector<pid_t>> processes() const;

  // Of /dev/kfd, or of the render node of one of its GPUs.
  bool is_ours(dev_t device) const;

  // Every open file of /dev/kfd and of these render nodes.
  Result<std::vector<TakenFile>> take_files() const;
  // The one that `fd`, borrowed, is a descriptor of, whoever holds it.
  Result<TakenFile> take_file(int fd, kfd::FileClass device) const;
  // The processes that have a descriptor of the dma-buf that `fd` is one of.
  Result<std::vector<pid_t>> holders_of_dmabuf(int fd, ino_t inode) const;

  // A map without a descriptor would pass unseen: no DUMP_EXT_FILE ever comes for it. EINVAL where a process
  // maps /dev/kfd and holds no descriptor of it, through which alone its GPU state could be reached.
  // Once; further calls do nothing.
  Result<void> check_kfd_maps();
  // Where files come one by one, maps of a process without any file would be missed, and their BOs would not
  // be restored. EINVAL where such a process maps a render node, or no process holds a file of ours. Once,
  // likewise.
  Result<void> check_maps_without_files();

  // What a restore from files reads in CRIU's images of the tasks' memory, by pid in their own namespace,
  // except the runs, which CRIU alone knows.
  Result<std::map<std::uint32_t, std::vector<PluginMap>>> maps() const;

  // CRIU's own parser stops at a map of a dma-buf, before it asks any plugin.
  void name_unrestorable_maps() const;

 private:
  std::vector<dev_t> devices() const;
  Result<void> check_unmapped(pid_t pid) const;

  dev_t kfd_device_;
  const kfd::Topology& topology_;
  std::set<pid_t> tasks_;  // none: of a host that names none
  bool kfd_maps_checked_ = false;
  bool maps_without_files_checked_ = false;
};

}  // namespace sluice::plugin
