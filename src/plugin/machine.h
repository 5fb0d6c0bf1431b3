// SPDX-License-Identifier: MIT
// Questions about the local machine that are neither KFD's ioctls nor a render node's.
#pragma once

#include <cstdint>
#include <span>

#include "kfd/criu_ops.h"
#include "kfd/topology.h"
#include "pipeline/result.h"
#include "plugin/stats.h"

namespace sluice::plugin {

// NUMA node of the GPU behind a render node, -1 when unknown.
int numa_node_of_render_minor(std::uint32_t minor);

// The part of `machine` that a process knows: all CPU nodes and the GPUs of `devices`, which get their user
// gpu_ids. Errors: ENODEV when a GPU is missing in `machine`.
Result<kfd::Topology> topology_of(const kfd::Topology& machine, std::span<const kfd::DeviceIds> devices);

// Writes sluice-stats-*.json into the image directory. Statistics never fail a run: a warning is logged.
void write_stats(Direction direction, int id, double seconds, std::span<const GpuOutcome> gpus);

}  // namespace sluice::plugin
