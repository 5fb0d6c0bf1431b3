// SPDX-License-Identifier: MIT
// Running another program.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::bench {

// Runs a program, looked up in PATH, and waits. Returns its exit status, or 128 + N if signal N ended it. Its
// stdin is ours and its stdout is discarded. Errors: ENOENT and the others of posix_spawnp.
Result<int> run_program(std::vector<std::string> arguments);

}  // namespace sluice::bench
