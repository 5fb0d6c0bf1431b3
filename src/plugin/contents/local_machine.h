// SPDX-License-Identifier: MIT
// Facts about the local machine that come neither from KFD's ioctls nor from a render node.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "kfd/topology.h"

namespace sluice::plugin {

// The topology of sysfs. Errors: those of the files; EPROTO for contents that the kernel never writes; that
// is no damage of an image.
Result<kfd::Topology> local_topology();

// NUMA node of the GPU behind a render node, -1 when unknown.
int numa_node_of_render_minor(std::uint32_t minor);

}  // namespace sluice::plugin
