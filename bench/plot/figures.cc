// SPDX-License-Identifier: MIT
#include "plot/figures.h"

#include <algorithm>
#include <cstdio>
#include <initializer_list>

namespace sluice::bench {
namespace {

constexpr const char* kOurs = "#2b6cb0";
constexpr const char* kTheirs = "#93a8bd";
constexpr int kRowPixels = 30;  // of a bar chart, for each case

// A figure of a case that may go by one of several names; null: the case has none of them.
const Figure* find(const Case& in, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const Figure* found = in.find(name); found != nullptr) return found;
  }
  return nullptr;
}

std::string columns(const Interval& interval) {
  return print(interval.value) + " " + print(interval.low) + " " + print(interval.high);
}

// Rows from top to bottom, a label each, over a value axis from 0.
std::string rows_head(std::size_t rows, const std::string& title, const std::string& axis) {
  return head(820, 110 + kRowPixels * static_cast<int>(rows), title) + "set yrange [" +
         print(static_cast<double>(rows) - 0.4) + ":-0.6]\nset xlabel " + quoted(axis) +
         "\nset ytics scale 0\nset grid xtics lc rgb '#e0e0e0'\nset style fill solid noborder\n"
         "set key above\n";
}

// A bar for the ratio (the first of `shares`) of each case that has been compared with one of `theirs`, with
// both rates behind it.
Drawing ratios(const Saved& saved, const char* name, const char* title, const char* range,
               std::initializer_list<const char*> shares, std::initializer_list<const char*> theirs) {
  std::string rows, labels;
  std::size_t count = 0;
  for (const Report& report : saved.reports) {
    for (const Case& each : report.cases) {
      const Figure* share = find(each, shares);
      const Figure* ours = find(each, {"ours"});
      const Figure* other = find(each, theirs);
      if (share == nullptr || ours == nullptr || other == nullptr) continue;
      rows += quoted(report.scenario + ": " + each.name) + " " + columns(share->value) + "\n";
      labels += "set label " +
                quoted(print("%.2f", share->value.value) + ": " + print("%.2f", ours->value.value) + " / " +
                       print("%.2f GB/s", other->value.value)) +
                " at graph 1.02, first " + std::to_string(count) + "\n";
      ++count;
    }
  }
  if (count == 0) return {};
  return {name, rows_head(count, title, "ours / theirs, median of pairs with its 95 % interval") +
                    data_of("data", rows) + labels +
                    "set arrow from 1, graph 0 to 1, graph 1 nohead lc rgb '#c05621' lw 2 front\n"
                    "set rmargin 26\nset key off\nset xrange " +
                    range +
                    "\nplot $data using ($2/2):0:(0):2:($0-0.32):($0+0.32):ytic(1) with boxxyerror lc rgb '" +
                    kOurs + "', \\\n  $data using 2:0:3:4 with xerrorbars pt -1 lc rgb '#202020'\n"};
}

Drawing cpu(const Saved& saved) {
  std::string rows;
  std::size_t count = 0;
  for (const Report& report : saved.reports) {
    for (const Case& each : report.cases) {
      const Figure* ours = find(each, {"cpu"});
      const Figure* raw = find(each, {"raw cpu", "sink cpu", "buffered cpu", "serial cpu"});
      if (ours == nullptr || raw == nullptr) continue;
      rows += quoted(report.scenario + ": " + each.name) + " " + columns(ours->value) + " " +
              columns(raw->value) + "\n";
      ++count;
    }
  }
  if (count == 0) return {};
  return {"cpu", rows_head(count, "CPU time per GB moved", "seconds of one core per GB") +
                     data_of("data", rows) +
                     "set xrange [0:*]\n"
                     "plot $data using ($2/2):0:(0):2:($0-0.36):($0-0.02):ytic(1) with boxxyerror lc rgb '" +
                     kOurs +
                     "' title 'ours', \\\n  $data using ($5/2):0:(0):5:($0+0.02):($0+0.36) with boxxyerror "
                     "lc rgb '" +
                     kTheirs +
                     "' title 'compared with', \\\n"
                     "  $data using 2:($0-0.19):3:4 with xerrorbars pt -1 lc rgb '#202020' notitle, \\\n"
                     "  $data using 5:($0+0.19):6:7 with xerrorbars pt -1 lc rgb '#202020' notitle\n"};
}

// A point of the grid: the three stages' rates in GB/s, and the time over the slowest stage's.
struct Point {
  int rates[3];
  double overhead;
};

std::vector<Point> grid_of(const Report& report) {
  std::vector<Point> grid;
  for (const Case& each : report.cases) {
    Point point{};
    const Figure* overhead = each.find("overhead");
    if (overhead == nullptr ||
        std::sscanf(each.name.c_str(), "%d/%d/%d", &point.rates[0], &point.rates[1], &point.rates[2]) != 3)
      continue;
    point.overhead = (overhead->value.value - 1) * 100;
    grid.push_back(point);
  }
  return grid;
}

// Rates of one stage as they occur, the lowest first.
std::vector<int> rates_of(const std::vector<Point>& grid, std::size_t stage) {
  std::vector<int> rates;
  for (const Point& point : grid) rates.push_back(point.rates[stage]);
  std::sort(rates.begin(), rates.end());
  rates.erase(std::unique(rates.begin(), rates.end()), rates.end());
  return rates;
}

std::string tics(const char* axis, const std::vector<int>& rates) {
  std::string text = "set " + std::string(axis) + "tics scale 0 (";
  for (std::size_t i = 0; i < rates.size(); ++i)
    text += (i > 0 ? ", '" : "'") + std::to_string(rates[i]) + "' " + std::to_string(i);
  return text + ")\n";
}

Drawing bubble(const Saved& saved) {
  const Report* report = saved.find("bubble");
  const std::vector<Point> grid = report == nullptr ? std::vector<Point>{} : grid_of(*report);
  if (grid.empty()) return {};
  const std::vector<int> copies = rates_of(grid, 0), checksums = rates_of(grid, 1),
                         stores = rates_of(grid, 2);
  const auto place = [](const std::vector<int>& rates, int rate) {
    return std::to_string(std::find(rates.begin(), rates.end(), rate) - rates.begin());
  };
  std::string script = head(820, 330, "") + "unset title\nset multiplot layout 1," +
                       std::to_string(stores.size()) +
                       " title 'Time beyond the slowest stage alone, in %'\n"
                       "set cbrange [0:3]\nset palette defined (0 '#e6f4ea', 1 '#fbe9c6', 3 '#e07b5a')\n"
                       "unset colorbox\nset border 0\nset size ratio 1\nset key off\n"
                       "set xlabel 'copy, GB/s'\nset ylabel 'checksum, GB/s'\n"
                       "set xrange [-0.5:" +
                       print(static_cast<double>(copies.size()) - 0.5) +
                       "]\nset yrange [-0.5:" + print(static_cast<double>(checksums.size()) - 0.5) + "]\n" +
                       tics("x", copies) + tics("y", checksums);
  for (const int store : stores) {
    std::string rows;
    for (const Point& point : grid) {
      if (point.rates[2] != store) continue;
      rows += place(copies, point.rates[0]) + " " + place(checksums, point.rates[1]) + " " +
              print(point.overhead) + " " + quoted(print("%.1f", point.overhead)) + "\n";
    }
    script += data_of("data", rows) + "set title 'store " + std::to_string(store) +
              " GB/s'\nplot $data using 1:2:3 with image pixels, $data using 1:2:4 with labels\n";
  }
  return {"bubble", script + "unset multiplot\n"};
}

Drawing pool(const Saved& saved) {
  const Report* report = saved.find("memory");
  if (report == nullptr) return {};
  std::string dumps, restores;
  for (const Case& each : report->cases) {
    unsigned mib = 0;
    const Figure* ours = each.find("ours");
    if (ours == nullptr || std::sscanf(each.name.c_str(), "pool %u MiB", &mib) != 1) continue;
    (each.name.ends_with("restore") ? restores : dumps) +=
        std::to_string(mib) + " " + columns(ours->value) + "\n";
  }
  if (dumps.empty() || restores.empty()) return {};
  return {"pool", head(640, 340, "Rate against the size of the staging memory") + data_of("dumps", dumps) +
                      data_of("restores", restores) +
                      "set logscale x 2\nset xrange [14:586]\nset yrange [0:*]\n"
                      "set xlabel 'staging memory, MiB'\nset ylabel 'GB/s'\nset key bottom right\n"
                      "set grid lc rgb '#e0e0e0'\nset xtics (16, 32, 64, 128, 256, 512)\n"
                      "plot $dumps using 1:2:3:4 with yerrorlines pt 7 ps 0.6 lw 2 lc rgb '" +
                      kOurs +
                      "' title 'dump', \\\n  $restores using 1:2:3:4 with yerrorlines pt 7 ps 0.6 lw 2 "
                      "lc rgb '" +
                      kTheirs + "' title 'restore'\n"};
}

}  // namespace

std::vector<Drawing> drawings(const Saved& saved) {
  std::vector<Drawing> all;
  for (Drawing drawing :
       {ratios(saved, "throughput", "Rate beside the ceiling", "[0:1.2]", {"ratio to raw", "ratio"},
               {"raw", "ceiling", "buffered"}),
        ratios(saved, "gain", "Rate beside another way", "[0:*]", {"ratio"}, {"serial", "dense", "one BO"}),
        cpu(saved), bubble(saved), pool(saved)}) {
    if (!drawing.name.empty()) all.push_back(std::move(drawing));
  }
  return all;
}

}  // namespace sluice::bench
