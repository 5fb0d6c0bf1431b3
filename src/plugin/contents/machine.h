// SPDX-License-Identifier: MIT
// Questions about the local machine that are neither KFD's ioctls nor a render node's.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "kfd/topology.h"
#include "plugin/contents/stats.h"

namespace sluice::plugin {

// The topology of sysfs. Errors: those of the files; EPROTO where it says what the kernel's never does, which
// is no damage of an image.
Result<kfd::Topology> local_topology();

// NUMA node of the GPU behind a render node, -1 when unknown.
int numa_node_of_render_minor(std::uint32_t minor);

// Logs a line for each GPU, and writes sluice-stats-*.json and sluice-trace-*.json into the image directory
// as the configuration says. Statistics never fail a run: a warning is logged. With streams the log alone has
// them.
void write_stats(Direction direction, int id, const FileTimes& times, std::span<const GpuOutcome> gpus,
                 const Config& config);

}  // namespace sluice::plugin
