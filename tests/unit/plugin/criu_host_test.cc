// SPDX-License-Identifier: MIT
// What goes into CRIU's log: one line for each, whatever a hostile process or image has put into the text.
// This program is the host.
#include "plugin/host/criu_host.h"

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

// By "Error " runtimes find the lines that they show to their users.
const std::string kError = "amdgpu_plugin: Error (RESTORE_EXT_FILE): ";

std::string logged(std::string_view text, Level level = Level::Error) {
  lines.clear();
  const RunningHook running("RESTORE_EXT_FILE");
  log_line(level, text);
  EXPECT_EQ(lines.size(), 1U);
  return lines.front();
}

TEST(LogLine, ATextCannotMakeUpALineOrCommandATerminal) {
  EXPECT_EQ(logged("process 7 maps /dmabuf:x\n(00.1) Error: made up\r\x1b[2J\x9b"),
            kError + "process 7 maps /dmabuf:x?(00.1) Error: made up??[2J?\n");
}

TEST(LogLine, OnlyAnErrorIsMarkedAsOne) {
  EXPECT_EQ(logged("a disk is slow"), kError + "a disk is slow\n");
  for (const Level level : {Level::Warning, Level::Info, Level::Debug})
    EXPECT_EQ(logged("a disk is slow", level), "amdgpu_plugin: a disk is slow\n");
}

TEST(LogLine, AnErrorBetweenHooksNamesNone) {
  { const RunningHook running("init"); }
  lines.clear();
  log_line(Level::Error, "memory is gone");
  EXPECT_EQ(lines, (std::vector<std::string>{"amdgpu_plugin: Error (end): memory is gone\n"}));
}

TEST(LogLine, ATextIsNoFormat) {
  EXPECT_EQ(logged("%s%n%1000000d"), kError + "%s%n%1000000d\n");
}

TEST(LogLine, ALongOneIsCutBelowTheHostsBuffer) {
  const std::string line = logged(std::string(100'000, 'x'));
  EXPECT_LT(line.size(), 4096U);
  EXPECT_TRUE(line.ends_with("x\n"));
}

TEST(LogLine, SeveralLinesAreAskedFor) {
  lines.clear();
  const RunningHook running("RESTORE_EXT_FILE");
  log_text(Level::Error, "a\nb\n");
  EXPECT_EQ(lines, (std::vector<std::string>{kError + "a\n", kError + "b\n"}));
}

}  // namespace
}  // namespace sluice::plugin
