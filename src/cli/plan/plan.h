// SPDX-License-Identifier: MIT
// The machine described in a file, for `sluice plan` (docs/measurements/planning.md has the format).
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "cli/command.h"
#include "cli/plan/planned_machine.h"

namespace sluice::cli {

// The machine described in a text. Errors: EINVAL with the place and what is expected there: no JSON, an
// unknown name, a value that is missing or out of range.
Result<Machine> parse_machine(std::string_view text);

// The same of a file. Errors: those of reading it, with its path.
Result<Machine> read_machine(const std::string& path);
// Reports one of these errors; see refusal.h.
ExitCode refuse_machine(const char* command, bool json, const Error& error);

}  // namespace sluice::cli
