// SPDX-License-Identifier: MIT
#include "report/report.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>

namespace sluice::bench {

std::string number(double value) {
  char text[32];
  const double size = value < 0 ? -value : value;
  (void)std::snprintf(text, sizeof text,
                      size >= 100   ? "%.0f"
                      : size >= 10  ? "%.1f"
                      : size >= 0.1 ? "%.3f"
                                    : "%.4f",
                      value);
  return text;
}

std::string with_unit(double value, const std::string& unit) {
  return number(value) + (unit == "ratio" ? "" : " " + unit);
}

Figure figure(std::string name, std::string unit, std::vector<double> samples) {
  Interval value = median_interval(samples);
  return {std::move(name), std::move(unit), value, std::move(samples)};
}

Figure ratio(std::string name, const std::vector<double>& ours, const std::vector<double>& theirs) {
  std::vector<double> ratios(ours.size());
  for (std::size_t i = 0; i < ours.size(); ++i) ratios[i] = ours[i] / theirs[i];
  return figure(std::move(name), "ratio", std::move(ratios));
}

const Figure* Case::find(const std::string& wanted) const {
  const auto found = std::find_if(figures.begin(), figures.end(),
                                  [&](const Figure& figure) { return figure.name == wanted; });
  return found == figures.end() ? nullptr : &*found;
}

const Case* Report::find(const std::string& wanted) const {
  const auto found =
      std::find_if(cases.begin(), cases.end(), [&](const Case& each) { return each.name == wanted; });
  return found == cases.end() ? nullptr : &*found;
}

std::string table_of(const Report& report) {
  std::string text = report.scenario + ": " + report.what + "\n";
  for (const Case& each : report.cases) {
    text += "  " + each.name + "\n";
    for (const Figure& figure : each.figures) {
      char line[160];
      (void)std::snprintf(line, sizeof line, "    %-24s %9s %-6s [%s, %s] of %zu\n", figure.name.c_str(),
                          number(figure.value.value).c_str(), figure.unit.c_str(),
                          number(figure.value.low).c_str(), number(figure.value.high).c_str(),
                          figure.samples.size());
      text += line;
    }
    if (!each.note.empty()) text += "    " + each.note + "\n";
  }
  return text;
}

nlohmann::ordered_json json_of(const Report& report) {
  nlohmann::ordered_json cases = nlohmann::ordered_json::array();
  for (const Case& each : report.cases) {
    nlohmann::ordered_json figures = nlohmann::ordered_json::object();
    for (const Figure& figure : each.figures) {
      figures[figure.name] = {{"unit", figure.unit},
                              {"value", figure.value.value},
                              {"low", figure.value.low},
                              {"high", figure.value.high},
                              {"samples", figure.samples}};
    }
    cases.push_back({{"name", each.name}, {"note", each.note}, {"figures", std::move(figures)}});
  }
  return {{"scenario", report.scenario}, {"what", report.what}, {"cases", std::move(cases)}};
}

Result<Report> report_of(const nlohmann::ordered_json& json) {
  try {
    Report report{json.at("scenario"), json.at("what"), {}};
    for (const auto& each : json.at("cases")) {
      Case added{each.at("name"), each.at("note"), {}};
      for (const auto& [name, figure] : each.at("figures").items()) {
        added.figures.push_back({name,
                                 figure.at("unit"),
                                 {figure.at("value"), figure.at("low"), figure.at("high")},
                                 figure.at("samples")});
      }
      report.cases.push_back(std::move(added));
    }
    return report;
  } catch (const nlohmann::json::exception& error) {
    return make_error(EINVAL, error.what());
  }
}

}  // namespace sluice::bench
