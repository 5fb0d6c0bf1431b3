// SPDX-License-Identifier: MIT
// Cases on the vamdgpu engine. A program is on a virtual machine from its first moment or never, so the
// scenario runs again in a process of its own there, and what that reports is added here. The figures of the
// other engines are taken without it.
#pragma once

#include <cstdint>
#include <string>

#include "scenario/scenario.h"

namespace sluice::bench {

// Runs `scenario` of this program (sluice-bench) again, with the same options, on a virtual machine with one
// GPU of `vram_bytes`, and appends its cases. Where no such machine can be made, an empty case says so.
// Errors: the scenario's.
Result<void> add_vamdgpu_cases(const BenchOptions& options, const std::string& scenario,
                               std::uint64_t vram_bytes, Report& report);

}  // namespace sluice::bench
