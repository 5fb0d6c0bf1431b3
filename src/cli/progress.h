// SPDX-License-Identifier: MIT
// How far a command is that takes its time: one line on the terminal, written over and over, and gone when
// the command has ended. Where standard error is no terminal that can do that, nothing. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace sluice::cli {

// "[###             ]  23 % of 1.50 GiB, 2.31 GB/s, 12 s left", in `columns` at most. What is not known yet
// is left out; where there is no room, the bar goes first, then what stands last. Empty: nothing to do, or no
// room.
std::string progress_text(std::uint64_t done, std::uint64_t total, double seconds, std::size_t columns);

class ProgressLine {
 public:
  explicit ProgressLine(bool wanted);
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // `done` of `total` bytes after `seconds`.
  void draw(std::uint64_t done, std::uint64_t total, double seconds);
  // Makes room for other lines.
  void clear();

 private:
  bool wanted_;
  bool drawn_ = false;
};

}  // namespace sluice::cli
