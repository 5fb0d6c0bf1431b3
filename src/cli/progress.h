// SPDX-License-Identifier: MIT
// The progress of a long command: one line on the terminal, overwritten, and erased when the command ends.
// Nothing if standard error is no capable terminal. One thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace sluice::cli {

// "[###             ]  23 % of 1.50 GiB, 2.31 GB/s, 12 s left", at most `columns` wide. Unknown values are
// left out. If there is no room, the bar goes first, then the text from its end. Empty: nothing to do, or no
// room.
std::string progress_text(std::uint64_t done, std::uint64_t total, double seconds, std::size_t columns);

constexpr auto kProgressPeriod = std::chrono::milliseconds(200);  // between two drawings

class ProgressLine {
 public:
  explicit ProgressLine(bool wanted);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // `done` of `total` bytes after `seconds`. Draws when the last drawing is old enough.
  void draw(std::uint64_t done, std::uint64_t total, double seconds);
  // Makes room for other lines.
  void clear();

 private:
  bool wanted_;
  std::optional<std::chrono::steady_clock::time_point> drawn_at_;  // nothing: the line is empty
};

}  // namespace sluice::cli
