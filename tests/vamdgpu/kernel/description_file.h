// SPDX-License-Identifier: MIT
// The description of a machine as the bytes that the kernel module reads (description.h). For vamdgpu-load
// and tests.
#pragma once

#include <string>

#include "../presets.h"

namespace vamdgpu {

// Throws std::invalid_argument for a machine that the module's format has no room for.
std::string description_bytes(const MachineDescription& machine);

}  // namespace vamdgpu
