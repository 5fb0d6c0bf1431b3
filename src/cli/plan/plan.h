// SPDX-License-Identifier: MIT
// The machine that a file describes, for `sluice plan` (docs/planning.md has the format).
#pragma once

#include <string_view>

#include "base/result.h"
#include "cli/plan/machine.h"

namespace sluice::cli {

// The machine that a text describes. Errors: EINVAL with the place and what it should be: no JSON, a name
// that is none of the format's, a value that is missing or out of its range.
Result<forecast::Machine> parse_machine(std::string_view text);

}  // namespace sluice::cli
