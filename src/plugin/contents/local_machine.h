// SPDX-License-Identifier: MIT
// Facts about the local machine that come neither from KFD's ioctls nor from a render node.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "kfd/topology.h"
#include "plugin/contents/stats.h"
#include "plugin/host/image_store.h"

namespace sluice::plugin {

// The topology of sysfs. Errors: those of the files; EPROTO for contents that the kernel never writes; that
// is no damage of an image.
Result<kfd::Topology> local_topology();

// NUMA node of the GPU behind a render node, -1 when unknown.
int numa_node_of_render_minor(std::uint32_t minor);

// A line for each GPU.
void log_summaries(Direction direction, std::span<const GpuOutcome> gpus);

// Saves sluice-stats-*.json and sluice-trace-*.json beside the images, as configured. Never fails a run:
// errors are logged as a warning.
void write_stats(Direction direction, int id, const FileTimes& times, std::span<const GpuOutcome> gpus,
                 const settings::Config& config, ImageStore& store);

}  // namespace sluice::plugin
