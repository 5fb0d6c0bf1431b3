// SPDX-License-Identifier: MIT
// What `sluice show` prints for people.
#pragma once

#include <string>

#include "cli/checkpoint/image_directory.h"
#include "cli/show/show_survey.h"

namespace sluice::cli {

// A line that sums it up, where the images are from, and tables: GPUs, processes, render files, contents,
// shared memory; with `list_bos` one of all BOs. Faults are not in it.
std::string show_text(const ImageDirectory& directory, const Survey& survey, bool list_bos);

}  // namespace sluice::cli
