// SPDX-License-Identifier: MIT
#include "goals/why.h"

#include <algorithm>

namespace sluice::bench {
namespace {

constexpr double kAllBusy = 0.9;  // share of the cores: code that also waits hardly gets more

std::string place_of(const Bar& bar) {
  return std::string(bar.scenario) + ", " + bar.case_name;
}

const Case* case_of(const Bar& bar, std::span<const Report> reports) {
  const auto report = std::find_if(reports.begin(), reports.end(),
                                   [&](const Report& each) { return each.scenario == bar.scenario; });
  return report == reports.end() ? nullptr : report->find(bar.case_name);
}

double value_of(const Case& in, const char* figure) {
  const Figure* found = in.find(figure);
  return found == nullptr ? 0 : found->value.value;
}

// "ours 2.10 GB/s, raw 2.30 GB/s, cpu 0.081 s/GB": all measured figures except the one already printed.
std::string figures_of(const Case& in, const std::string& told) {
  std::string text;
  for (const Figure& figure : in.figures) {
    if (figure.name == told) continue;
    text += (text.empty() ? "" : ", ") + figure.name + " " + with_unit(figure.value.value, figure.unit);
  }
  return text;
}

// Whether the processors or the device limited a transfer, from its rate and its cost per GB.
std::string what_was_busy(const Case& in, unsigned cores) {
  const double ours = value_of(in, "ours"), cpu = value_of(in, "cpu"), dma = value_of(in, "dma cpu");
  if (ours <= 0 || cpu <= 0 || cores == 0) return "";
  const double busy = ours * (cpu + dma);
  std::string text = number(busy) + " of " + std::to_string(cores) + " cores were busy";
  if (dma > 0) text += ", " + number(ours * dma) + " of it in the place of a GPU";
  return text +
         (busy >= kAllBusy * cores ? ": the processors set the pace" : ": most of the time was waiting");
}

// Why the interval does not clear the bar.
std::string shortfall(const BarResult& result) {
  const bool at_least = result.bar.side == Side::AtLeast;
  const double value = result.measured->value;
  if (at_least ? value >= result.bar.limit : value <= result.bar.limit) {
    const double end = at_least ? result.measured->low : result.measured->high;
    return "the median of " + std::string(result.bar.figure) + " clears the bar, its interval (" +
           with_unit(end, result.bar.unit) + ") does not: the runs differ by more than the margin";
  }
  return std::string(result.bar.figure) + " " + with_unit(value, result.bar.unit) + " is " +
         (at_least ? "below " : "above ") + with_unit(result.bar.limit, result.bar.unit);
}

std::string sentence(const BarResult& result, const Case& in, unsigned cores) {
  std::string text;
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text += (text.empty() ? "" : "; ") + part;
  };
  if (result.verdict == Verdict::Short || result.verdict == Verdict::WithinNoise) {
    add(shortfall(result));
    add(figures_of(in, result.bar.figure));
    add(what_was_busy(in, cores));
  } else {
    add(figures_of(in, ""));
  }
  add(in.note);
  return place_of(result.bar) + (text.empty() ? "" : ": ") + text;
}

bool is_told(const std::string& note, const std::vector<std::string>& sentences) {
  return std::any_of(sentences.begin(), sentences.end(),
                     [&](const std::string& sentence) { return sentence.ends_with(note); });
}

}  // namespace

std::vector<std::string> why(const GoalResult& result, std::span<const Report> reports, unsigned cores) {
  std::vector<std::string> sentences;
  for (const BarResult& bar : result.bars) {
    const Case* in = case_of(bar.bar, reports);
    if (bar.verdict == Verdict::NotMeasured) {
      sentences.push_back(place_of(bar.bar) + ": " + bar.bar.figure + " was not measured" +
                          (in == nullptr || in->note.empty() ? "" : "; " + in->note));
    } else if (bar.verdict != Verdict::Pass || result.verdict == Verdict::Pass) {
      sentences.push_back(sentence(bar, *in, cores));
    } else if (!in->note.empty() && !is_told(in->note, sentences)) {
      sentences.push_back(place_of(bar.bar) + ": " + in->note);  // how a bar was cleared nevertheless
    }
  }
  return sentences;
}

}  // namespace sluice::bench
