// SPDX-License-Identifier: MIT
// What `sluice show --json` prints.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/checkpoint/image_directory.h"
#include "cli/show/show_survey.h"

namespace sluice::cli {

// "shown", or the worst fault: "damaged", "incomplete" (something is missing), "unreadable", "unsupported",
// "unsigned".
const char* result_of(const std::vector<Error>& faults);
// What to do about them: about the first.
std::string remedy_of(const std::vector<Error>& faults);
// In words.
nlohmann::ordered_json faults_json(const std::vector<Error>& faults);

// Everything known, with exact numbers; faults, too; with `list_bos` all BOs.
nlohmann::ordered_json show_json(const ImageDirectory& directory, const Survey& survey, bool list_bos);

}  // namespace sluice::cli
