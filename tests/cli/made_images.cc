// SPDX-License-Identifier: MIT
#include "made_images.h"

#include <algorithm>

#include "base/units.h"
#include "json_schema.h"

namespace sluice::cli_test {

vamdgpu::MachineOptions small_machine() {
  vamdgpu::MachineOptions options;
  options.gpus = 2;
  options.vram_bytes = 24 * kMiB;
  options.gtt_bytes = 80 * kMiB;
  return options;
}

lookalike::Program start_subject(const vamdgpu::Machine& machine, const Strings& options) {
  Strings command = {GPU_SUBJECT};
  command.insert(command.end(), options.begin(), options.end());
  lookalike::Program subject(command, machine.process_environment());
  EXPECT_THAT(subject.hear(), StartsWith("ready"));
  return subject;
}

std::string MadeImages::run_host(const std::string& name, const Strings& command, const Strings& settings) {
  std::filesystem::create_directories(directory(name));
  const std::string log = directory("log").string();
  Strings words = {CRIU_HOST};
  words.insert(words.end(), command.begin(), command.end());
  for (const std::string& word :
       {std::string("--images"), directory(name).string(), std::string("--libdir"),
        std::filesystem::path(SLUICE_PLUGIN).parent_path().string(), std::string("--log"), log})
    words.push_back(word);
  Strings environment = machine_.process_environment();
  environment.insert(environment.end(), settings.begin(), settings.end());
  lookalike::Program host(words, environment);
  if (host.wait() != 0) return lookalike::read_file(log);
  host.close_input();  // a restored process ends at end of file
  while (!host.hear().empty()) {
  }
  return {};
}

std::string MadeImages::dump(const std::string& name, const Strings& subject_options,
                             const Strings& settings) {
  Strings options = {"--vram", "4M", "--gtt", "1M", "--zero", "20"};
  options.insert(options.end(), subject_options.begin(), subject_options.end());
  lookalike::Program subject = start_subject(machine_, options);
  std::string wrong = run_host(name, {"dump", "--pid", std::to_string(subject.pid())}, settings);
  if (wrong.empty()) (void)subject.wait();
  return wrong;
}

std::string MadeImages::restore(const std::string& name) {
  return run_host(name, {"restore", "--detach"});
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

json object_of(const Ended& ended) {
  EXPECT_EQ(ended.err, "");
  EXPECT_EQ(std::count(ended.out.begin(), ended.out.end(), '\n'), 1) << ended.out;
  json object = json::parse(ended.out, nullptr, false);
  EXPECT_EQ(schema_complaint(object), "");
  return object;
}

}  // namespace sluice::cli_test
