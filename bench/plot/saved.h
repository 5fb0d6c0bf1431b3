// SPDX-License-Identifier: MIT
// A measurement that was written as JSON, read back: by `goals`, or by one scenario.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "report/report.h"

namespace sluice::bench {

struct Saved {
  nlohmann::ordered_json goals;    // as `goals` writes them; null from a single scenario
  nlohmann::ordered_json machine;  // likewise
  std::vector<Report> reports;

  const Report* find(const std::string& scenario) const;  // null: there is none
};

// Errors: ENOENT and what else opening gives, EINVAL (not one of ours).
Result<Saved> read_saved(const std::filesystem::path& file);

}  // namespace sluice::bench
