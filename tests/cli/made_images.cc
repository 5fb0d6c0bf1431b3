// SPDX-License-Identifier: MIT
#include "made_images.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "json_schema.h"

namespace sluice::cli_test {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

}  // namespace

vamdgpu::MachineOptions small_machine() {
  vamdgpu::MachineOptions options;
  options.gpus = 2;
  options.vram_bytes = 24 * kMiB;
  options.gtt_bytes = 80 * kMiB;
  return options;
}

std::string MadeImages::dump(const std::string& name, const Strings& subject_options,
                             const Strings& settings) {
  std::filesystem::create_directories(directory(name));
  Strings command = {GPU_SUBJECT, "--vram", "4M", "--gtt", "1M", "--zero", "20"};
  command.insert(command.end(), subject_options.begin(), subject_options.end());
  host_test::Program subject(command, machine_.process_environment());
  const std::string ready = subject.hear();
  if (!ready.starts_with("ready")) return ready;
  Strings environment = machine_.process_environment();
  environment.insert(environment.end(), settings.begin(), settings.end());
  host_test::Program host(
      {CRIU_HOST, "dump", "--pid", std::to_string(subject.pid()), "--images", directory(name).string(),
       "--libdir", std::filesystem::path(SLUICE_PLUGIN).parent_path().string(), "--log",
       (scratch_.path() / "log").string()},
      environment);
  if (host.wait() != 0) return host_test::read_file(scratch_.path() / "log");
  (void)subject.wait();
  return {};
}

std::string MadeImages::restore(const std::string& name) {
  host_test::Program host({CRIU_HOST, "restore", "--detach", "--images", directory(name).string(), "--libdir",
                           std::filesystem::path(SLUICE_PLUGIN).parent_path().string(), "--log",
                           (scratch_.path() / "log").string()},
                          machine_.process_environment());
  if (host.wait() != 0) return host_test::read_file(scratch_.path() / "log");
  host.close_input();  // the restored process ends at end of file
  while (!host.hear().empty()) {
  }
  return {};
}

std::filesystem::path MadeImages::copy(const std::string& from, const std::string& to) const {
  std::filesystem::copy(directory(from), directory(to), std::filesystem::copy_options::recursive);
  return directory(to);
}

Ended sluice(const Strings& arguments, const vamdgpu::Machine* machine, const Strings& environment,
             const std::function<void()>& before) {
  Strings command = {SLUICE};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Strings variables = environment;
  if (machine != nullptr) {
    for (const std::string& variable : machine->process_environment()) variables.push_back(variable);
  }
  return run_command(command, variables, before);
}

nlohmann::json object_of(const Ended& ended) {
  EXPECT_EQ(ended.err, "");
  EXPECT_EQ(std::count(ended.out.begin(), ended.out.end(), '\n'), 1) << ended.out;
  nlohmann::json object = nlohmann::json::parse(ended.out, nullptr, false);
  EXPECT_EQ(schema_complaint(object), "");
  return object;
}

}  // namespace sluice::cli_test
