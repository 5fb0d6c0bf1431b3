// SPDX-License-Identifier: MIT
// Maps of render nodes that a dump could not bring back, found before anything is written. Kernels
// before 6.18 do not list the BOs of a render node; those that are mapped show.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "kfd/topology.h"
#include "plugin/dump/dump_contents.h"

namespace sluice::plugin {

// Every map of a render node in `processes` must be one of those that its process can have again. EINVAL
// names the first that is not.
Result<void> check_render_maps(const std::map<pid_t, BoRanges>& known, const kfd::Topology& topology,
                               const std::vector<pid_t>& processes);

}  // namespace sluice::plugin
