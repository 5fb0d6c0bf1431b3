// SPDX-License-Identifier: MIT
// Images that the plugin made on a virtual machine, for commands that look at them. Thread-bound.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command_run.h"
#include "lookalike/harness.h"
#include "machine_directory.h"

namespace sluice::cli_test {

using Strings = std::vector<std::string>;

vamdgpu::MachineOptions small_machine();

// A machine, and the images of processes that were dumped on it.
class MadeImages {
 public:
  MadeImages() : machine_(vamdgpu::Machine::create(small_machine())) {}

  // Runs a GPU process with these options and dumps it into a directory of this name, with these settings
  // ("NAME=value") of the plugin. "" or what went wrong.
  std::string dump(const std::string& name, const Strings& subject_options, const Strings& settings = {});
  // Restores from there and lets the process end. "" or what went wrong.
  std::string restore(const std::string& name);

  std::filesystem::path directory(const std::string& name) const { return scratch_.path() / name; }
  // A copy that may be damaged. `from` and `to`: names.
  std::filesystem::path copy(const std::string& from, const std::string& to) const;
  vamdgpu::Machine& machine() { return machine_; }

 private:
  host_test::ScratchDirectory scratch_;
  vamdgpu::Machine machine_;
};

// The command with these arguments, on `machine`; null: on this one.
Ended sluice(const Strings& arguments, const vamdgpu::Machine* machine = nullptr,
             const Strings& environment = {}, const std::function<void()>& before = {});
// The object that a command with --json has printed, after checking that it stands alone.
nlohmann::json object_of(const Ended& ended);

}  // namespace sluice::cli_test
