// SPDX-License-Identifier: MIT
// The processes that CRIU dumps, all stopped: which they are, which GPU files they have open, and which of
// their GPU maps can be restored.
//
// Changes nothing. Main thread, the one that traces them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "kfd/device.h"
#include "kfd/memory/open_dmabufs.h"
#include "kfd/topology.h"
#include "plugin/host/vma_runs.h"

namespace sluice::plugin {

// An open file of one of our devices, with our own descriptor of it and the processes that hold it.
struct TakenFile {
  kfd::FileClass device;
  UniqueFd own;
  std::vector<pid_t> holders;
};

// What the tree has open of ours.
struct TreeFiles {
  std::vector<TakenFile> files;
  std::vector<kfd::OpenDmaBuf> dmabufs;  // of any memory
};

class TargetTree {
 public:
  // `kfd_device`: 0 if this machine has no KFD; then nothing is examined. `topology` is borrowed.
  TargetTree(dev_t kfd_device, const kfd::Topology& topology)
      : kfd_device_(kfd_device), topology_(topology) {}

  // If it freezes a cgroup, CRIU also traces processes that it does not dump.
  void add(pid_t pid) { tasks_.insert(pid); }
  // Ascending. Hosts older than PAUSE_DEVICES name no tasks: then all processes that CRIU traces. Files that
  // CRIU never asks for are dropped at the end.
  Result<std::vector<pid_t>> processes() const;

  // Whether the process that the host dumps first is among `holders`. It is the tree's root, whose parent is
  // not in the tree. False if /proc does not tell.
  bool begins_with(const std::set<pid_t>& holders) const;

  // Whether it is /dev/kfd or the render node of one of its GPUs.
  bool is_ours(dev_t device) const;

  // Whether the process has such a file open. Errors: those of examining it.
  Result<bool> has_files(pid_t pid) const;
  // Every open file of /dev/kfd and of these render nodes. A file in flight in a UNIX socket is none.
  Result<std::vector<TakenFile>> take_files() const;
  // The same, and the open dma-bufs.
  Result<TreeFiles> take() const;
  // The processes that have a descriptor of the dma-buf behind `fd`.
  Result<std::vector<pid_t>> holders_of_dmabuf(int fd, ino_t inode) const;

  // A map without a descriptor would go unnoticed, because no DUMP_EXT_FILE ever comes for it. EINVAL if a
  // process maps /dev/kfd without a descriptor of it, because only that reaches its GPU state. Once; further
  // calls do nothing.
  Result<void> check_kfd_maps();
  // If files come one by one, maps of a process without any file would be missed and their BOs not restored.
  // EINVAL if such a process maps a render node, or no process holds a file of ours. Once.
  Result<void> check_maps_without_files();

  // The maps that a restore from files reads from CRIU's images of the tasks' memory, by pid in their own
  // namespace. Without the runs, which only CRIU knows.
  Result<std::map<std::uint32_t, std::vector<PluginMap>>> maps() const;

  // CRIU's own parser fails at a map of a dma-buf before it asks any plugin.
  void name_unrestorable_maps() const;

 private:
  std::vector<dev_t> devices() const;
  Result<void> check_unmapped(pid_t pid) const;

  dev_t kfd_device_;
  const kfd::Topology& topology_;
  std::set<pid_t> tasks_;  // empty: the host names none
  bool kfd_maps_checked_ = false;
  bool maps_without_files_checked_ = false;
};

}  // namespace sluice::plugin
