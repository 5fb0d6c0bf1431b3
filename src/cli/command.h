// SPDX-License-Identifier: MIT
// What the commands of `sluice` have in common: how one is added, how it ends, how it prints.
//
// Each command has a file of its own with one function, which adds a subcommand to the parser and leaves in
// `run` what is to be done when the user has chosen it. Its --help ends with an example and with what the
// exit status means, in lines of 80 columns at most. To add a command: that file, a line in commands.h, a
// line in main.cc. Single-threaded.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace sluice::cli {

// The exit status, the same in all commands.
enum class ExitCode {
  Done = 0,    // done, or there was nothing to do; a question was answered with yes
  Failed = 1,  // tried, and it did not succeed; something is damaged
  Usage = 2,   // the command line is wrong
  Refused =
      3,  // not tried: this is nothing the command may touch, or can say anything about; the answer is no
};

using Run = std::function<ExitCode()>;

// --json, which every command has.
void add_json_flag(CLI::App& command, bool& json);

// What a process is named by: decimal, 1 to INT_MAX. CLI11 itself takes 010 for 8.
CLI::Validator process_number();

// One object on one line, printable ASCII: a terminal obeys some characters above it, too. Text that is not
// UTF-8 is made so.
std::string json_line(const nlohmann::ordered_json& object);
// The same on standard output.
void print_json(const nlohmann::ordered_json& object);

}  // namespace sluice::cli
