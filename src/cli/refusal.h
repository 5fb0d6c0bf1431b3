// SPDX-License-Identifier: MIT
// How a command says that it did not do its work.
#pragma once

#include <string>

#include "cli/command.h"

namespace sluice::cli {

// With `json` as an object on standard output, else on standard error. `message` has an id. `cause`:
// word_of() one, if something failed on the images. Returns `exit_code`.
ExitCode refuse(const char* command, bool json, ExitCode exit_code, const std::string& message,
                const std::string& remedy, const char* cause = nullptr);

}  // namespace sluice::cli
