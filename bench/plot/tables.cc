// SPDX-License-Identifier: MIT
#include "plot/tables.h"

#include <algorithm>

namespace sluice::bench {
namespace {

using nlohmann::ordered_json;

std::string row(const std::vector<std::string>& cells) {
  std::string text = "|";
  for (const std::string& cell : cells) text += " " + cell + " |";
  return text + "\n";
}

std::string header(const std::vector<std::string>& cells) {
  return row(cells) + row(std::vector<std::string>(cells.size(), "---"));
}

std::string measured(double value, double low, double high) {
  return number(value) + (low == high ? "" : " [" + number(low) + ", " + number(high) + "]");
}

std::string machine_table(const ordered_json& machine) {
  std::string text = header({"", ""});
  for (const auto& [name, value] : machine.items())
    text += row({name, value.is_string() ? value.get<std::string>() : value.dump()});
  return text;
}

// A row for each bar; the goal's name and verdict in the first of its rows.
std::string goals_table(const ordered_json& goals) {
  std::string text = header({"#", "goal", "figure", "bar", "measured", ""});
  for (const ordered_json& goal : goals) {
    bool first = true;
    for (const ordered_json& bar : goal.at("bars")) {
      const std::string unit = bar.at("unit");
      text += row({first ? goal.at("id").dump() : "", first ? goal.at("name").get<std::string>() : "",
                   bar.at("scenario").get<std::string>() + ": " + bar.at("case").get<std::string>() + ", " +
                       bar.at("figure").get<std::string>(),
                   (bar.at("side") == "at least" ? "≥ " : "≤ ") + bar.at("bar").dump() +
                       (unit == "ratio" ? "" : " " + unit),
                   bar.at("value").is_null() ? "not measured"
                                             : measured(bar.at("value"), bar.at("low"), bar.at("high")),
                   first ? goal.at("verdict").get<std::string>() : ""});
      first = false;
    }
  }
  std::string whys;
  for (const ordered_json& goal : goals) {
    if (goal.at("verdict") == "pass") continue;
    for (const ordered_json& sentence : goal.at("why"))
      whys += "- Goal " + goal.at("id").dump() + ": " + sentence.get<std::string>() + ".\n";
  }
  return text + (whys.empty() ? "" : "\n" + whys);
}

// Columns: the figures of all cases, as they first occur.
std::string scenario_table(const Report& report) {
  std::vector<std::string> columns;
  std::size_t samples = 0;
  for (const Case& each : report.cases) {
    for (const Figure& figure : each.figures) {
      samples = std::max(samples, figure.samples.size());
      if (std::find(columns.begin(), columns.end(), figure.name) == columns.end())
        columns.push_back(figure.name);
    }
  }
  std::vector<std::string> titles = {"case"};
  titles.insert(titles.end(), columns.begin(), columns.end());
  std::string text =
      report.what + "; up to " + std::to_string(samples) + " samples a figure.\n\n" + header(titles);
  std::string notes;
  for (const Case& each : report.cases) {
    std::vector<std::string> cells = {each.name};
    for (const std::string& column : columns) {
      const Figure* figure = each.find(column);
      const std::string unit = figure == nullptr || figure->unit == "ratio" ? "" : " " + figure->unit;
      cells.push_back(figure == nullptr
                          ? ""
                          : measured(figure->value.value, figure->value.low, figure->value.high) + unit);
    }
    text += row(cells);
    if (!each.note.empty()) notes += "- " + each.name + ": " + each.note + "\n";
  }
  return text + (notes.empty() ? "" : "\n" + notes);
}

struct Section {
  std::string name, text;
};

std::vector<Section> sections(const Saved& saved) {
  std::vector<Section> all;
  if (saved.machine.is_object()) all.push_back({"machine", machine_table(saved.machine)});
  if (saved.goals.is_array()) all.push_back({"goals", goals_table(saved.goals)});
  for (const Report& report : saved.reports) all.push_back({report.scenario, scenario_table(report)});
  return all;
}

}  // namespace

std::string markdown_of(const Saved& saved) {
  std::string text;
  for (const Section& section : sections(saved)) text += "## " + section.name + "\n\n" + section.text + "\n";
  return text;
}

std::string filled_in(const std::string& document, const Saved& saved) {
  std::string text = document;
  for (const Section& section : sections(saved)) {
    const std::string begin = "<!-- measured: " + section.name + " -->\n";
    const std::size_t from = text.find(begin);
    if (from == std::string::npos) continue;
    const std::size_t to = text.find("<!-- end -->", from);
    if (to == std::string::npos) continue;
    text.replace(from + begin.size(), to - from - begin.size(), "\n" + section.text + "\n");
  }
  return text;
}

}  // namespace sluice::bench
