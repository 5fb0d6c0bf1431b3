// SPDX-License-Identifier: MIT
// The commands of `sluice`, one function each (command.h says how they work).
#pragma once

#include "cli/command.h"

namespace sluice::cli {

// sluice check [--dir DIR] [--pid PID]
void add_check(CLI::App& app, Run& run);
// sluice plan FILE
void add_plan(CLI::App& app, Run& run);
// sluice show IMAGES
void add_show(CLI::App& app, Run& run);
// sluice verify IMAGES
void add_verify(CLI::App& app, Run& run);
// sluice map IMAGES [--sysfs DIR]
void add_map(CLI::App& app, Run& run);
// sluice diff A B
void add_diff(CLI::App& app, Run& run);
// sluice flatten DIR
void add_flatten(CLI::App& app, Run& run);
// sluice predump PID [--images-dir DIR] [--prev-images-dir DIR]
void add_predump(CLI::App& app, Run& run);
// sluice unpause PID
void add_unpause(CLI::App& app, Run& run);

}  // namespace sluice::cli
