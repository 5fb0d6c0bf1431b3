// SPDX-License-Identifier: MIT
// The text output of `sluice show`.
#pragma once

#include <string>

#include "cli/checkpoint/image_directory.h"
#include "cli/show/show_survey.h"

namespace sluice::cli {

// A summary line, the images' origin, and tables: GPUs, processes, render files, contents, shared memory;
// with `list_bos` one of all BOs. Without faults.
std::string show_text(const ImageDirectory& directory, const Survey& survey, bool list_bos);

}  // namespace sluice::cli
