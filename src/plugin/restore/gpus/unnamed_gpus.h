// SPDX-License-Identifier: MIT
// GPUs that a restored task sees and its image does not name. KFD needs a render file for each GPU that the
// task sees, and the container may lack a GPU's node. Without systemd-managed cgroups, crun restores a
// container before its device cgroup is in force (libcrun_container_restore() in crun's
// src/libcrun/container.c, up to 1.29.1).
//
// Functions without state; the task's one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace sluice::plugin {

// The GPU's render node in the /dev of CRIU's main process, whatever the task's container has under that
// name. For KFD only: a process must never get a descriptor of a GPU that its container was not given. The
// image directory, which every task has open, is in the main process' mounts. The way up from it ends at
// their root, because the container's root is not on it. Errors: open(2)'s, ENODEV, EBADF.
Result<UniqueFd> open_render_node_of_machine(std::uint32_t minor);

// Why a task may see more GPUs than its container has nodes, and the remedy. `had`: GPUs that it saw when
// dumped, `sees`: those that it sees here.
std::string sees_more_gpus(std::size_t had, std::size_t sees);

// Warns about a process that sees more GPUs than before; for `outside` of them KFD got the machine's node. If
// its container's own /dev has all nodes, it is unknown which ones the container was given.
void warn_of_more_gpus(std::uint32_t pid, std::size_t had, std::size_t sees, std::size_t outside);

}  // namespace sluice::plugin
