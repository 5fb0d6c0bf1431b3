// SPDX-License-Identifier: MIT
// The command line options that say what machine to make, for every program that makes one (vamdgpu-run,
// vamdgpu-load): entries for getopt_long, their help, and what each does to MachineOptions. No state; a
// program calls getopt_long itself and may have options of its own.
#pragma once

#include <getopt.h>

#include <optional>
#include <vector>

#include "presets.h"

namespace vamdgpu {

// Lines for --help, in its format.
extern const char* const kMachineOptionsHelp;

// getopt_long's table: the program's own entries (values below kFirstMachineOption), the machine's, the end.
constexpr int kFirstMachineOption = 1024;
std::vector<option> with_machine_options(std::vector<option> own);

// Takes what getopt_long returned. Nothing: not a machine option; false: `argument` cannot be its value.
std::optional<bool> take_machine_option(int which, const char* argument, MachineOptions* machine);

// The newest release whose formats are known (kKfdLinux61 ...) that is not newer than this kernel; the oldest
// one on anything older.
std::uint32_t running_kfd_minor_version();

}  // namespace vamdgpu
