// SPDX-License-Identifier: MIT
// Maps of render nodes that a dump could not bring back, found before anything is written. Kernels before 7.2
// do not list the BOs of a render node; those that are mapped show.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "kfd/criu_ops.h"
#include "kfd/topology.h"
#include "pipeline/result.h"

namespace sluice::plugin {

// Every map of a render node in the processes of a KFD process must be one of its BOs. EINVAL names the first
// that is not.
Result<void> check_render_maps(const kfd::Checkpoint& checkpoint, const kfd::Topology& topology,
                               const std::vector<pid_t>& holders);

// The same for a process without a KFD file that holds the render file `fd`: whatever it maps of a render
// node is that node's own.
Result<void> check_render_maps_without_kfd(int fd, std::uint32_t render_minor, dev_t kfd_device);

}  // namespace sluice::plugin
