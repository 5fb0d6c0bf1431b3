// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace sluice {

// For text from outside (an image, sysfs, a directory entry) in a message or on a terminal. Everything but
// printable ASCII becomes '?', so it can neither forge a log line nor command a terminal.
constexpr char printable(char c) {
  return c < ' ' || c > '~' ? '?' : c;
}
inline std::string printable(std::string_view text) {
  std::string clean(text);
  for (char& c : clean) c = printable(c);
  return clean;
}

}  // namespace sluice
