// SPDX-License-Identifier: MIT
#include "plot/timeline.h"

#include <algorithm>
#include <cerrno>

namespace sluice::bench {
namespace {

constexpr std::size_t kMostBars = 6000;
constexpr std::size_t kMostRows = 1024;
constexpr int kRowPixels = 8;

const char* colour(const std::string& stage) {
  if (stage == "copy") return "#2b6cb0";
  if (stage == "checksum") return "#d69e2e";
  if (stage == "store") return "#6ba37b";
  return "#93a8bd";
}

// What is shown of a trace.
struct Span {
  std::uint64_t began_ns = UINT64_MAX;
  std::uint64_t ended_ns = 0;
  std::uint64_t all_ended_ns = 0;      // the whole trace's end
  std::uint64_t last_ns = UINT64_MAX;  // an event that began later is left out
};

double milliseconds(const Span& span, std::uint64_t ns) {
  return static_cast<double>(ns - span.began_ns) / 1e6;
}

Span span_of(const SavedTrace& trace) {
  Span span;
  std::vector<std::uint64_t> beginnings;
  for (const TracedLane& lane : trace.lanes) {
    for (const TraceEvent& event : lane.events) {
      beginnings.push_back(event.began_ns);
      span.began_ns = std::min(span.began_ns, event.began_ns);
      span.all_ended_ns = std::max(span.all_ended_ns, event.ended_ns);
    }
  }
  if (beginnings.size() > kMostBars) {
    std::nth_element(beginnings.begin(), beginnings.begin() + kMostBars - 1, beginnings.end());
    span.last_ns = beginnings[kMostBars - 1];
  }
  for (const TracedLane& lane : trace.lanes) {
    for (const TraceEvent& event : lane.events) {
      if (event.began_ns <= span.last_ns) span.ended_ns = std::max(span.ended_ns, event.ended_ns);
    }
  }
  return span;
}

std::string title(const Span& span) {
  std::string what = "When each chunk was in which stage, a row for each slot";
  if (span.last_ns == UINT64_MAX) return what;
  return what + "; the first " + print("%.0f", milliseconds(span, span.ended_ns)) + " of " +
         print("%.0f ms", milliseconds(span, span.all_ended_ns));
}

}  // namespace

Result<Drawing> timeline(const SavedTrace& trace, std::string name) {
  const Span span = span_of(trace);
  if (span.began_ns == UINT64_MAX) return Error{EINVAL, name + ": no chunk in the trace"};
  std::vector<std::string> bars(trace.stages.size());  // rows for each stage: from, to, row
  std::string labels;
  std::size_t rows = 0;
  for (const TracedLane& lane : trace.lanes) {
    std::size_t slots = 1;
    for (const TraceEvent& event : lane.events) slots = std::max<std::size_t>(slots, event.slot + 1);
    if (rows + slots > kMostRows)
      return Error{EFBIG, name + ": more than the " + std::to_string(kMostRows) + " slots that can be drawn"};
    for (const TraceEvent& event : lane.events) {
      if (event.began_ns > span.last_ns) continue;
      bars[event.stage] += print("%.3f ", milliseconds(span, event.began_ns)) +
                           print("%.3f ", milliseconds(span, event.ended_ns)) +
                           std::to_string(rows + event.slot) + "\n";
    }
    labels += (labels.empty() ? "" : ", ") + quoted(lane.name) + " " +
              print(static_cast<double>(rows) + static_cast<double>(slots - 1) / 2);
    rows += slots + 1;  // one stays empty
  }
  std::string script = head(900, 120 + kRowPixels * static_cast<int>(rows), title(span)), plots;
  for (std::size_t stage = 0; stage < bars.size(); ++stage) {
    if (bars[stage].empty()) continue;
    const std::string data = "stage" + std::to_string(stage);
    script += data_of(data, bars[stage]);
    plots += (plots.empty() ? "plot $" : ", \\\n  $") + data +
             " using (($1+$2)/2):3:1:2:($3-0.42):($3+0.42) with boxxyerror lc rgb '" +
             colour(trace.stages[stage]) + "' title " + quoted(trace.stages[stage]);
  }
  return Drawing{std::move(name), script + "set ytics scale 0 (" + labels + ")\nset xrange [0:" +
                                      print(std::max(milliseconds(span, span.ended_ns), 0.001)) +
                                      "]\nset yrange [" + print(static_cast<double>(rows) - 1.4) +
                                      ":-0.6]\nset xlabel 'ms'\nset grid xtics lc rgb '#e0e0e0'\n"
                                      "set style fill solid noborder\nset key above\n" +
                                      plots + "\n"};
}

}  // namespace sluice::bench
