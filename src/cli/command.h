// SPDX-License-Identifier: MIT
// What the commands of `sluice` share: how one is added, ends, and prints.
//
// Each command has its own file with one function. It adds a subcommand to the parser and stores in `run`
// what to do if the user chooses it. Its --help ends with an example and the meaning of the exit status, in
// lines of at most 80 columns. To add a command: that file, a line in commands.h, a line in main.cc.
// Single-threaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "settings/config.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace sluice::cli {

// The exit status, the same in all commands.
enum class ExitCode {
  Done = 0,     // done, or nothing to do; the answer is yes
  Failed = 1,   // tried without success; something is damaged
  Usage = 2,    // the command line is wrong
  Refused = 3,  // not tried: the command may not touch this, or knows nothing about it; the answer is no
};

using Run = std::function<ExitCode()>;

// The settings, from where the plugin has them. What is wrong with them is said on standard error. Once in
// each command; `sluice check` lists it among its findings. `command`: the subcommand's name.
settings::Config read_settings(const char* command);

// Staging memory that the plugin uses with these settings where `gpus` GPUs are copied at once.
std::uint64_t staging_bytes_of(const settings::Config& config, std::size_t gpus);

// --json, which every command has.
void add_json_flag(CLI::App& command, bool& json);

// A process on the command line: decimal, 1 to INT_MAX. CLI11 itself reads 010 as 8.
CLI::Validator process_number();

// One object on one line, printable ASCII, because terminals also obey some characters above it. Text that is
// not UTF-8 is converted.
std::string json_line(const nlohmann::ordered_json& object);
// The same on standard output.
void print_json(const nlohmann::ordered_json& object);

}  // namespace sluice::cli
