// SPDX-License-Identifier: MIT
#include "cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "cli/text.h"

namespace sluice::cli {
namespace {

constexpr std::size_t kWidestBar = 30;
constexpr std::size_t kNarrowestBar = 10;
constexpr std::size_t kUsualColumns = 80;  // if the terminal does not tell

// To the beginning of the line, and erase it.
constexpr const char* kErase = "\r\033[K";

bool is_terminal() {
  const char* kind = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && kind != nullptr && std::string_view(kind) != "dumb";
}

// The width may have changed since the last line. The last column stays free, because some terminals wrap
// there.
std::size_t usable_columns() {
  struct winsize size {};
  const bool told = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return (told ? size.ws_col : kUsualColumns) - 1;
}

}  // namespace

std::string progress_text(std::uint64_t done, std::uint64_t total, double seconds, std::size_t columns) {
  if (total == 0) return "";
  const double part = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  std::array<char, 16> percent{};
  (void)std::snprintf(percent.data(), percent.size(), "%3d %%", static_cast<int>(part * 100));
  std::string text = percent.data();
  if (text.size() > columns) return "";
  std::string rate = done > 0 ? rate_text(done, seconds) : "";
  std::string left;
  if (!rate.empty() && part < 1) left = ", " + duration_text(seconds * (1 - part) / part) + " left";
  if (!rate.empty()) rate = ", " + rate;
  for (const std::string& more : {" of " + bytes_text(total), rate, left}) {
    if (text.size() + more.size() > columns) break;
    text += more;
  }
  const std::size_t room = columns - text.size();
  if (room < kNarrowestBar + 3) return text;
  const std::size_t width = std::min(room - 3, kWidestBar);
  const auto full = static_cast<std::size_t>(part * static_cast<double>(width));
  return "[" + std::string(full, '#') + std::string(width - full, ' ') + "] " + text;
}

ProgressLine::ProgressLine(bool wanted) : wanted_(wanted && is_terminal()) {}

void ProgressLine::draw(std::uint64_t done, std::uint64_t total, double seconds) {
  const auto now = std::chrono::steady_clock::now();
  if (!wanted_ || (drawn_at_ && now - *drawn_at_ < kProgressPeriod)) return;
  (void)std::fputs((kErase + progress_text(done, total, seconds, usable_columns())).c_str(), stderr);
  drawn_at_ = now;
}

void ProgressLine::clear() {
  if (drawn_at_) (void)std::fputs(kErase, stderr);
  drawn_at_.reset();
}

}  // namespace sluice::cli
