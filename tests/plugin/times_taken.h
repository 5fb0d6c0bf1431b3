// SPDX-License-Identifier: MIT
// How long something has taken, again and again: only told, because no test asserts speed.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace sluice::plugin_test {

class TimesTaken {
 public:
  void add(std::chrono::nanoseconds time) { times_.push_back(time); }
  std::size_t count() const { return times_.size(); }
  // The least, the median and the most of them. Of none: that there are none.
  std::string text() const {
    if (times_.empty()) return "(never)";
    std::vector<std::chrono::nanoseconds> sorted = times_;
    std::sort(sorted.begin(), sorted.end());
    const auto ms = [](std::chrono::nanoseconds time) {
      return std::chrono::duration<double, std::milli>(time).count();
    };
    char text[96];
    (void)std::snprintf(text, sizeof text, "%.0f/%.0f/%.0f ms (least, median, most of %zu)",
                        ms(sorted.front()), ms(sorted[sorted.size() / 2]), ms(sorted.back()), sorted.size());
    return text;
  }

 private:
  std::vector<std::chrono::nanoseconds> times_;
};

}  // namespace sluice::plugin_test
