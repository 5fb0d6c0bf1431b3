// SPDX-License-Identifier: MIT
// The commands of `sluice`, one function each (command.h says how they work).
#pragma once

#include "cli/command.h"

namespace sluice::cli {

// sluice unpause PID
void add_unpause(CLI::App& app, Run& run);

}  // namespace sluice::cli
