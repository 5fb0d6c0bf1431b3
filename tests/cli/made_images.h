// SPDX-License-Identifier: MIT
// What the tests of commands share: virtual machines, and images that the plugin made on one. Thread-bound.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command_run.h"
#include "lookalike/harness.h"
#include "machine_directory.h"

namespace sluice::cli_test {

using lookalike::Strings;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

vamdgpu::MachineOptions small_machine();

inline std::string test_name() {
  return ::testing::UnitTest::GetInstance()->current_test_info()->name();
}

// A GPU process with these options, which is ready.
lookalike::Program start_subject(const vamdgpu::Machine& machine, const Strings& options);

// A machine, and the images of processes that were dumped on it.
class MadeImages {
 public:
  MadeImages() : machine_(vamdgpu::Machine::create(small_machine())) {}

  // Runs a host with this command, its options and settings of the plugin ("NAME=value"), in a directory of
  // this name. "" or what went wrong.
  std::string run_host(const std::string& name, const Strings& command, const Strings& settings = {});
  // Runs a GPU process with these options and dumps it into a directory of this name, with these settings
  // of the plugin. "" or what went wrong.
  std::string dump(const std::string& name, const Strings& subject_options, const Strings& settings = {});
  // Restores from there and lets the process end. "" or what went wrong.
  std::string restore(const std::string& name);

  std::filesystem::path directory(const std::string& name) const { return scratch_.path() / name; }
  // A copy that may be damaged. `from` and `to`: names.
  std::filesystem::path copy(const std::string& from, const std::string& to) const;
  vamdgpu::Machine& machine() { return machine_; }

 private:
  lookalike::ScratchDirectory scratch_;
  vamdgpu::Machine machine_;
};

// The command with these arguments, on `machine`; null: on this one.
Ended sluice(const Strings& arguments, const vamdgpu::Machine* machine = nullptr,
             const Strings& environment = {}, const std::function<void()>& before = {});
// The object that a command with --json has printed, after checking that it stands alone.
json object_of(const Ended& ended);

}  // namespace sluice::cli_test
