// SPDX-License-Identifier: MIT
// Running another program.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::bench {

// Runs a program, looked up in PATH, and waits. Its exit status, 128 + N when signal N ended it. `in` and
// `out`: descriptors for its stdin and stdout; without them its stdin is ours and its stdout goes nowhere.
// Errors: ENOENT and the others of posix_spawnp.
Result<int> run_program(std::vector<std::string> arguments, int in = -1, int out = -1);

}  // namespace sluice::bench
