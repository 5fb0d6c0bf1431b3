// SPDX-License-Identifier: MIT
#include "cli/command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

namespace sluice::cli {

void add_json_flag(CLI::App& command, bool& json) {
  command.add_flag("--json", json, "print one JSON object on standard output");
}

void print_json(const nlohmann::ordered_json& object) {
  const std::string text = object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  (void)std::puts(text.c_str());
}

}  // namespace sluice::cli
