// SPDX-License-Identifier: MIT
// sluice check --plan FILE: how long would a dump and a restore take on a machine that FILE describes?
// docs/planning.md has the format. Functions without state.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "cli/command.h"
#include "cli/plan/machine.h"
#include "settings/config.h"

namespace sluice::cli {

// The machine that a text describes. Errors: EINVAL with the place and what it should be: no JSON, a name
// that is none of the format's, a value that is missing or out of its range.
Result<forecast::Machine> parse_machine(std::string_view text);

// Prints both times, and what sets the pace. Failed: the file cannot be read, or describes no machine.
ExitCode plan(const std::string& path, const plugin::Config& config, bool json);

}  // namespace sluice::cli
