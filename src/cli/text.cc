// SPDX-License-Identifier: MIT
#include "cli/text.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cinttypes>
#include <cstdio>
#include <string_view>

namespace sluice::cli {

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 6> kUnits{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1023.5) {  // 2^64 bytes are 16 EiB
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  (void)std::snprintf(text.data(), text.size(), "%.*f %s", decimals, value, kUnits[unit]);
  return text.data();
}

std::string count_text(std::uint64_t count, const std::string& noun) {
  return count_text(count, noun, noun + 's');
}

std::string count_text(std::uint64_t count, const std::string& noun, const std::string& plural) {
  return std::to_string(count) + " " + (count == 1 ? noun : plural);
}

std::string share_text(std::uint64_t part, std::uint64_t whole) {
  const double percent = whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
  std::array<char, 32> text{};
  (void)std::snprintf(text.data(), text.size(), "%.0f %%", percent);
  return text.data();
}

std::string rate_text(std::uint64_t bytes, double seconds) {
  if (seconds <= 0) return "";
  const double rate = static_cast<double>(bytes) / seconds;
  std::array<char, 32> text{};
  if (rate >= 0.0995e9) {
    (void)std::snprintf(text.data(), text.size(), "%.2f GB/s", rate / 1e9);
  } else {
    (void)std::snprintf(text.data(), text.size(), "%.1f MB/s", rate / 1e6);
  }
  return text.data();
}

std::string duration_text(double seconds) {
  constexpr double kMinute = 60;
  constexpr double kHour = 3600;
  std::array<char, 32> text{};
  if (seconds < 2 * kMinute) {
    (void)std::snprintf(text.data(), text.size(), "%.0f s", seconds);
  } else if (seconds < 2 * kHour) {
    (void)std::snprintf(text.data(), text.size(), "%.0f min", seconds / kMinute);
  } else {
    (void)std::snprintf(text.data(), text.size(), "%.1f h", seconds / kHour);
  }
  return text.data();
}

std::string broken_line(std::string line) {
  for (std::size_t begin = 0; line.size() - begin > kColumns;) {
    std::size_t blank = line.rfind(' ', begin + kColumns);
    if (blank == std::string::npos || blank < begin + 4) blank = line.find(' ', begin + kColumns);
    if (blank == std::string::npos) break;
    line.replace(blank, 1, "\n    ");
    begin = blank + 1;
  }
  return line + '\n';
}

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@%+=:,./_-";
  const auto is_control = [](unsigned char letter) { return letter < ' ' || letter == 0x7f; };
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  const bool has_controls = std::any_of(word.begin(), word.end(), is_control);
  std::string quoted = has_controls ? "$'" : "'";  // $'…' understands \xHH
  for (const char letter : word) {
    if (is_control(static_cast<unsigned char>(letter))) {
      std::array<char, 8> code{};
      (void)std::snprintf(code.data(), code.size(), "\\x%02x", static_cast<unsigned>(letter) & 0xffU);
      quoted += code.data();
    } else if (letter == '\'') {
      quoted += has_controls ? "\\'" : "'\\''";
    } else if (letter == '\\' && has_controls) {
      quoted += "\\\\";
    } else {
      quoted += letter;
    }
  }
  return quoted + "'";
}

Table::Table(std::vector<std::string> headings) {
  for (std::string& heading : headings) {
    right_.push_back(heading.starts_with('>'));
    if (right_.back()) heading.erase(0, 1);
  }
  rows_.push_back(std::move(headings));
}

void Table::add(std::vector<std::string> cells) {
  assert(cells.size() == right_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text(const std::string& indent) const {
  std::vector<std::size_t> widths(right_.size());
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line = indent;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      line += i > 0 ? "  " : "";
      line += right_[i] ? padding + row[i] : row[i] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

}  // namespace sluice::cli
