// SPDX-License-Identifier: MIT
// What `sluice show --json` prints.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "cli/image_directory.h"
#include "cli/show_survey.h"

namespace sluice::cli {

// Everything that there is to tell, with exact numbers; faults, too; with `list_bos` all BOs.
nlohmann::ordered_json show_json(const ImageDirectory& directory, const Survey& survey, bool list_bos);

}  // namespace sluice::cli
