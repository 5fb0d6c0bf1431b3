// SPDX-License-Identifier: MIT
// What goes into CRIU's log: one line for each, whatever a hostile process or image has put into the text.
// This program is the host.
#include "plugin/criu_host.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <string>
#include <vector>

namespace {

std::vector<std::string> lines;

}  // namespace

extern "C" void print_on_level(unsigned int level, const char* format, ...);
extern "C" void print_on_level(unsigned int /*level*/, const char* format, ...) {
  std::array<char, 8192> line{};  // CRIU's own
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(line.data(), line.size(), format, arguments);
  va_end(arguments);
  EXPECT_LT(static_cast<std::size_t>(length), line.size());
  lines.emplace_back(line.data());
}

namespace sluice::plugin {
namespace {

std::string logged(std::string_view text) {
  lines.clear();
  log_line(Level::Error, text);
  EXPECT_EQ(lines.size(), 1U);
  return lines.front();
}

TEST(LogLine, ATextCannotMakeUpALineOrCommandATerminal) {
  EXPECT_EQ(logged("process 7 maps /dmabuf:x\n(00.1) Error: made up\r\x1b[2J\x9b"),
            "amdgpu_plugin: process 7 maps /dmabuf:x?(00.1) Error: made up??[2J?\n");
}

TEST(LogLine, ATextIsNoFormat) {
  EXPECT_EQ(logged("%s%n%1000000d"), "amdgpu_plugin: %s%n%1000000d\n");
}

TEST(LogLine, ALongOneIsCutBelowTheHostsBuffer) {
  const std::string line = logged(std::string(100'000, 'x'));
  EXPECT_LT(line.size(), 4096U);
  EXPECT_TRUE(line.ends_with("x\n"));
}

TEST(LogLine, SeveralLinesAreAskedFor) {
  lines.clear();
  log_text(Level::Error, "a\nb\n");
  EXPECT_EQ(lines, (std::vector<std::string>{"amdgpu_plugin: a\n", "amdgpu_plugin: b\n"}));
}

}  // namespace
}  // namespace sluice::plugin
