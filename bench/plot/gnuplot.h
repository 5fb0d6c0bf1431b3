// SPDX-License-Identifier: MIT
// Parts of scripts for gnuplot that write SVG to stdout. Pure functions.
#pragma once

#include <string>

namespace sluice::bench {

struct Drawing {
  std::string name;    // of the file, without ".svg"
  std::string script;  // for gnuplot's stdin
};

std::string print(const char* format, double value);
std::string print(double value);

// As a string of gnuplot's, between double quotes. gnuplot runs what stands there between backquotes as a
// command, and text comes from files that others may have written: none is left, and no end of a line.
std::string quoted(const std::string& text);

// The first lines of a figure, in pixels.
std::string head(int width, int height, const std::string& title);

// Rows that a plot reads under the name "$NAME".
std::string data_of(const std::string& name, const std::string& rows);

}  // namespace sluice::bench
