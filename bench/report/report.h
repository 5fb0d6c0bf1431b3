// SPDX-License-Identifier: MIT
// A scenario's results: cases with figures, every figure with its raw samples. Printed as a table and as
// JSON.
//
//   {"scenario": "dump", "what": "...", "cases": [{"name": "memcpy, new file", "note": "...", "figures":
//     {"ratio": {"unit": "ratio", "value": 0.97, "low": 0.95, "high": 0.98, "samples": [...]}, ...}}]}
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "measure/statistics.h"

namespace sluice::bench {

struct Figure {
  std::string name;  // what is measured: "ratio", "ours", "raw", "cpu" ...
  std::string unit;  // "ratio", "GB/s" (10^9), "s/GB", "us", "MiB", "s", "%"
  Interval value;
  std::vector<double> samples;
};

// The median of samples. REQUIRES: not empty.
Figure figure(std::string name, std::string unit, std::vector<double> samples);
// The median of ours[i] / theirs[i].
Figure ratio(std::string name, const std::vector<double>& ours, const std::vector<double>& theirs);

struct Case {
  std::string name;
  std::string note;  // a remark for readers of this case; may be empty
  std::vector<Figure> figures;

  const Figure* find(const std::string& figure) const;  // null: there is none
};

struct Report {
  std::string scenario;
  std::string what;  // one sentence: what was compared with what
  std::vector<Case> cases;

  const Case* find(const std::string& name) const;  // null: there is none
};

// Three significant digits, whatever the size.
std::string number(double value);
// Followed by its unit; a ratio has none.
std::string with_unit(double value, const std::string& unit);

std::string table_of(const Report& report);
nlohmann::ordered_json json_of(const Report& report);
// From json_of()'s result. Errors: EINVAL (anything else).
Result<Report> report_of(const nlohmann::ordered_json& json);

}  // namespace sluice::bench
