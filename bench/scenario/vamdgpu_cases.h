// SPDX-License-Identifier: MIT
// Cases on the vamdgpu engine. A program runs on a virtual machine from its start or never, so the scenario
// runs again in another process there, and its report is added here. The other engines' figures are taken
// without it.
#pragma once

#include <cstdint>
#include <string>

#include "scenario/scenario.h"

namespace sluice::bench {

// What BenchOptions::cases calls all of them.
inline constexpr const char* kOnVamdgpu = "vamdgpu";

// Runs `scenario` of this program (sluice-bench) again, with the same options, on a virtual machine with one
// GPU of `vram_bytes`, and appends its cases. If no such machine can be made, or its
// library is not beside this program, an empty case says so. Errors:
// the scenario's.
Result<void> add_vamdgpu_cases(const BenchOptions& options, const std::string& scenario,
                               std::uint64_t vram_bytes, Report& report);

}  // namespace sluice::bench
