// SPDX-License-Identifier: MIT
// Finds maps of render nodes that could not be restored, before anything is written. Kernels before 6.18 do
// not list a render node's BOs; only mapped ones show.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "kfd/topology.h"
#include "plugin/dump/contents/dump_contents.h"

namespace sluice::plugin {

// Every map of a render node in `processes` must be one that its process can map again. EINVAL names the
// first that is not.
Result<void> check_render_maps(const std::map<pid_t, BoRanges>& known, const kfd::Topology& topology,
                               const std::vector<pid_t>& processes);

}  // namespace sluice::plugin
