// SPDX-License-Identifier: MIT
// The statistics beside the images, sluice-stats-<run>.json: how fast the dump and the last restore were.
// plugin/contents/stats.h writes them; the files are untrusted.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/files/image_source.h"

namespace sluice::cli {

// One file.
struct Statistics {
  std::string name;
  nlohmann::ordered_json content;  // an object with a list "gpus"; everything else is unchecked
};

// By name. Files that cannot be read, or are no statistics, are left out and reported in `faults`.
std::vector<Statistics> read_statistics(const ImageSource& source, std::vector<Error>& faults);

// A table with a line per GPU of each run, or a sentence if there are none.
std::string statistics_text(const std::vector<Statistics>& all);

}  // namespace sluice::cli
