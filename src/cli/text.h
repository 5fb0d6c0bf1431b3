// SPDX-License-Identifier: MIT
// Text for people: sizes, shares, durations, lines, tables. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sluice::cli {

// What a line for people fits into, except where it has a path or a command.
inline constexpr std::size_t kColumns = 100;

// "512 B", "1.50 GiB": three significant digits. Exact numbers are in the JSON.
std::string bytes_text(std::uint64_t bytes);
// "1 file", "2 files".
std::string count_text(std::uint64_t count, const std::string& noun);
// The same of a noun with another plural.
std::string count_text(std::uint64_t count, const std::string& noun, const std::string& plural);
// "23 %"; "0 %" of nothing.
std::string share_text(std::uint64_t part, std::uint64_t whole);
// "2.31 GB/s" (10^9), "23.1 MB/s" (10^6); "" if no time has passed.
std::string rate_text(std::uint64_t bytes, double seconds);

// "42 s", "12 min", "2.5 h".
std::string duration_text(double seconds);

// A line of words with its newline, broken at blanks into lines of at most kColumns, each after four blanks.
// A longer word is not broken.
std::string broken_line(std::string line);

// A word for a shell's command line: quoted if necessary.
std::string shell_word(const std::string& word);

// Columns as wide as their widest cell, two blanks between them, and a heading. A column whose heading begins
// with '>' (not printed) is right-aligned.
class Table {
 public:
  explicit Table(std::vector<std::string> headings);
  // REQUIRES: as many cells as headings.
  void add(std::vector<std::string> cells);
  bool empty() const { return rows_.size() == 1; }
  // Lines with their newlines, each after `indent`.
  std::string text(const std::string& indent = "  ") const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;  // the headings first
};

}  // namespace sluice::cli
