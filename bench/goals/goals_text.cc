// SPDX-License-Identifier: MIT
// Prints judged goals: as a table for people and as JSON.
#include <cstdio>
#include <map>
#include <sstream>

#include "goals/goals.h"

namespace sluice::bench {
namespace {

constexpr std::size_t kWidth = 108;  // of the table, in characters

std::string bar_text(const Bar& bar) {
  char text[64];
  (void)std::snprintf(text, sizeof text, "%s %g%s%s", bar.side == Side::AtLeast ? ">=" : "<=", bar.limit,
                      std::string(bar.unit) == "ratio" ? "" : " ",
                      std::string(bar.unit) == "ratio" ? "" : bar.unit);
  return text;
}

// `text` in lines shorter than kWidth, each indented by `indent`.
std::string wrapped(const std::string& text, std::size_t indent) {
  std::string lines, line;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!line.empty() && indent + line.size() + 1 + word.size() > kWidth) {
      lines += std::string(indent, ' ') + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return lines + std::string(indent, ' ') + line + "\n";
}

nlohmann::ordered_json json_of(const BarResult& result) {
  nlohmann::ordered_json json = {{"bar", result.bar.limit},
                                 {"side", result.bar.side == Side::AtLeast ? "at least" : "at most"},
                                 {"unit", result.bar.unit}};
  for (const char* key : {"value", "low", "high"}) json[key] = nullptr;
  if (result.measured) {
    json["value"] = result.measured->value;
    json["low"] = result.measured->low;
    json["high"] = result.measured->high;
  }
  json["pass"] = result.verdict == Verdict::Pass;
  json["scenario"] = result.bar.scenario;
  json["case"] = result.bar.case_name;
  json["figure"] = result.bar.figure;
  return json;
}

}  // namespace

std::string headline_of(std::span<const Report> reports) {
  std::string text;
  const auto add = [&](const char* scenario, const char* case_name, const char* what, const char* raw_what) {
    for (const Report& report : reports) {
      const Case* in = report.scenario == scenario ? report.find(case_name) : nullptr;
      const Figure *ours = in != nullptr ? in->find("ours") : nullptr,
                   *raw = in != nullptr ? in->find("raw") : nullptr;
      if (ours == nullptr || raw == nullptr) continue;
      text += (text.empty() ? "This disk: " : ", ") + std::string(what) + " " +
              with_unit(ours->value.value, ours->unit) + " (" + raw_what + ": " + number(raw->value.value) +
              ")";
    }
  };
  add("dump", "memcpy, new file, checksum", "a durable dump runs at", "bare writes");
  add("restore", "memcpy, every block verified", "a verified restore at", "bare reads");
  return text.empty() ? text : text + "\n";
}

std::string table_of(std::span<const GoalResult> results) {
  char line[256];
  (void)std::snprintf(line, sizeof line, "%4s  %-50s %-14s %8s  %-18s  %s\n", "goal", "", "bar", "measured",
                      "95 % interval", "");
  std::string text = line;
  std::map<Verdict, unsigned> verdicts;
  for (const GoalResult& result : results) {
    const BarResult& bar = result.tightest;
    const std::string interval =
        bar.measured ? "[" + number(bar.measured->low) + ", " + number(bar.measured->high) + "]" : "";
    (void)std::snprintf(line, sizeof line, "%4u  %-50s %-14s %8s  %-18s  %s\n", result.id,
                        result.name.c_str(), bar_text(bar.bar).c_str(),
                        bar.measured ? number(bar.measured->value).c_str() : "", interval.c_str(),
                        name_of(result.verdict));
    text += line;
    for (const std::string& sentence : result.why) text += wrapped(sentence, 6);
    ++verdicts[result.verdict];
  }
  text += std::to_string(verdicts[Verdict::Pass]) + " of " + std::to_string(results.size()) + " goals pass";
  for (const Verdict other : {Verdict::WithinNoise, Verdict::Short, Verdict::NotMeasured}) {
    if (verdicts[other] != 0) text += ", " + std::to_string(verdicts[other]) + " " + name_of(other);
  }
  return text + "\n";
}

nlohmann::ordered_json json_of(std::span<const GoalResult> results) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const GoalResult& result : results) {
    nlohmann::ordered_json goal = {{"id", result.id}, {"name", result.name}};
    goal.update(json_of(result.tightest));
    goal["pass"] = result.verdict == Verdict::Pass;
    goal["verdict"] = name_of(result.verdict);
    goal["why"] = result.why;
    goal["bars"] = nlohmann::ordered_json::array();
    for (const BarResult& bar : result.bars) goal["bars"].push_back(json_of(bar));
    all.push_back(std::move(goal));
  }
  return all;
}

}  // namespace sluice::bench
