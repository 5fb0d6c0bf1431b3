// SPDX-License-Identifier: MIT
// The statistics beside the images, sluice-stats-<run>.json: how fast the dump and the last restore were.
// plugin/contents/stats.h writes them; what lies there now is not trusted.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/image_source.h"

namespace sluice::cli {

// One file.
struct Statistics {
  std::string name;
  nlohmann::ordered_json content;  // an object with a list "gpus"; all else may be anything
};

// By name. Files that cannot be read, or are no statistics, are told in `faults` and left out.
std::vector<Statistics> read_statistics(const ImageSource& source, std::vector<Error>& faults);

// A table with a line for each GPU of each run, or a sentence where there is none.
std::string statistics_text(const std::vector<Statistics>& all);

}  // namespace sluice::cli
