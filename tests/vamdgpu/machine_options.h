// SPDX-License-Identifier: MIT
// The command line of a program that makes a machine: the options that say what machine, beside the program's
// own. One thread, for getopt_long has state.
#pragma once

#include <functional>
#include <vector>

#include "presets.h"

namespace vamdgpu {

// Lines for --help, in its format.
extern const char* const kMachineOptionsHelp;

// An option of a program's own; `take` gets its argument, "" when it has none.
struct OwnOption {
  const char* name;
  bool has_argument;
  std::function<void(const char*)> take;
};

// Parses argv up to the first argument that is no option, whose index it returns; 0, after a line on stderr,
// for a wrong option.
int parse_options(int argc, char** argv, const std::vector<OwnOption>& own, MachineOptions* machine);

}  // namespace vamdgpu
