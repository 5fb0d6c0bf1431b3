// SPDX-License-Identifier: MIT
#include "cli/command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "base/printable.h"
#include "proc/directory.h"

namespace sluice::cli {

settings::Config read_settings(const char* command) {
  LogLines warnings;
  const settings::Config config =
      settings::parse_config(settings::environment_and_file(settings::kConfigFile, warnings), warnings);
  for (const LogLine& line : warnings)
    (void)std::fprintf(stderr, "sluice %s: %s\n", command, printable(line.text).c_str());
  return config;
}

std::uint64_t staging_bytes_of(const settings::Config& config, std::size_t gpus) {
  return gpus * config.shared_by(1, gpus).staging_bytes;
}

void add_json_flag(CLI::App& command, bool& json) {
  command.add_flag("--json", json, "print one JSON object on standard output");
}

CLI::Validator process_number() {
  return {[](const std::string& text) {
            const bool good = !text.starts_with('0') && proc::parse_number(text);
            return good ? std::string() : text + " is not a process number";
          },
          ""};
}

std::string json_line(const nlohmann::ordered_json& object) {
  return object.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

void print_json(const nlohmann::ordered_json& object) {
  (void)std::puts(json_line(object).c_str());
}

}  // namespace sluice::cli
