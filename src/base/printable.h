// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace sluice {

// Text from outside (an image, sysfs, a name in a directory) that goes into a message or onto a terminal:
// what is no printable ASCII is '?', so that it can neither make up a line of a log nor command a terminal.
constexpr char printable(char c) {
  return c < ' ' || c > '~' ? '?' : c;
}
inline std::string printable(std::string_view text) {
  std::string clean(text);
  for (char& c : clean) c = printable(c);
  return clean;
}

}  // namespace sluice
