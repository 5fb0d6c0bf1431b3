// SPDX-License-Identifier: MIT
// What the `sluice` command says of itself and of a command line that is wrong, whatever the machine.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <sstream>

#include "command_run.h"

namespace sluice::cli_test {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kCommands = {"check", "plan",    "show",    "verify", "map",
                                            "diff",  "flatten", "predump", "unpause"};

Ended sluice(std::vector<std::string> arguments, const std::function<void()>& before = {}) {
  arguments.insert(arguments.begin(), SLUICE);
  return run_command(arguments, {}, before);
}

// Lines of a terminal, wherever it is opened.
void fits_80_columns(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
}

TEST(CommandLine, HelpNamesEveryCommand) {
  const Ended ended = sluice({"--help"});
  EXPECT_EQ(ended.status, kDone);
  EXPECT_EQ(ended.err, "");
  for (const std::string& command : kCommands) {
    EXPECT_THAT(ended.out, HasSubstr("\n  " + command + " "));
    EXPECT_THAT(ended.out, HasSubstr("sluice " + command + " "));
  }
  fits_80_columns(ended.out);
}

TEST(CommandLine, HelpOfACommandHasAnExampleAndTheExitStatus) {
  for (const std::string& command : kCommands) {
    const Ended ended = sluice({command, "--help"});
    EXPECT_EQ(ended.status, kDone) << command;
    EXPECT_EQ(ended.err, "") << command;
    EXPECT_THAT(ended.out, HasSubstr("\nExample: sluice " + command + " "));
    EXPECT_THAT(ended.out, HasSubstr("\nExit status: 0 "));
    EXPECT_THAT(ended.out, HasSubstr("--json"));
    fits_80_columns(ended.out);
  }
}

TEST(CommandLine, VersionIsTold) {
  const Ended ended = sluice({"--version"});
  EXPECT_EQ(ended.status, kDone);
  EXPECT_TRUE(ended.out.starts_with("sluice ")) << ended.out;
}

TEST(CommandLine, WhatIsWrongIsNamed) {
  struct Case {
    std::vector<std::string> arguments;
    const char* said;
  };
  for (const Case& one :
       {Case{{}, "sluice: a command is needed: there are check, plan, show, "},
        Case{{"chek"}, "sluice: chek is neither a command nor an option: there are check, "},
        Case{{"--frob"}, "sluice: --frob is neither a command nor an option"},
        Case{{"show"}, "IMAGES is required"}, Case{{"show", "--frob", "images"}, "not expected: --frob"},
        Case{{"diff", "images"}, "B is required"}, Case{{"flatten"}, "DIR is required"},
        Case{{"unpause", "0"}, "0 is not a process number"},
        Case{{"unpause", "010"}, "010 is not a process number"},
        Case{{"unpause", "0x1"}, "0x1 is not a process number"},
        Case{{"check", "--pid", "2147483648"}, "2147483648 is not a process number"}}) {
    const Ended ended = sluice(one.arguments);
    EXPECT_EQ(ended.status, kUsage) << one.said;
    EXPECT_EQ(ended.out, "");
    EXPECT_THAT(ended.err, HasSubstr(one.said));
    EXPECT_THAT(ended.err, HasSubstr("--help"));
  }
}

// Output redirected to a full disk: whoever reads the file must not take it for complete.
TEST(CommandLine, OutputThatCannotBeWrittenIsAFailure) {
  const Ended ended = sluice({"--help"}, [] {
    const int full = ::open("/dev/full", O_WRONLY);
    if (full < 0 || ::dup2(full, STDOUT_FILENO) < 0) ::_exit(126);
  });
  EXPECT_EQ(ended.status, kFailed);
  EXPECT_THAT(ended.err, HasSubstr("standard output cannot be written"));
}

}  // namespace
}  // namespace sluice::cli_test
