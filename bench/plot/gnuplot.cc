// SPDX-License-Identifier: MIT
#include "plot/gnuplot.h"

#include <cstdio>

#include "base/printable.h"

namespace sluice::bench {

std::string print(const char* format, double value) {
  char text[64];
  (void)std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string print(double value) {
  return print("%.6g", value);
}

std::string quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char each : printable(text)) {
    if (each == '"' || each == '\\') quoted += '\\';
    quoted += each == '`' ? '\'' : each;
  }
  return quoted + "\"";
}

std::string head(int width, int height, const std::string& title) {
  return "set terminal svg size " + std::to_string(width) + "," + std::to_string(height) +
         " noenhanced font 'sans-serif,12' background '#ffffff'\n"
         "set title " +
         quoted(title) + "\nset border 3 lc rgb '#606060'\nset tics nomirror\n";
}

std::string data_of(const std::string& name, const std::string& rows) {
  return "$" + name + " << EOD\n" + rows + "EOD\n";
}

}  // namespace sluice::bench
