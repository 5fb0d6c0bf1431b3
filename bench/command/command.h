// SPDX-License-Identifier: MIT
// The subcommands of sluice-bench. Each sets `status` to the exit status when it has run.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "scenario/scenario.h"

namespace sluice::bench {

// The options of every measuring command.
struct Request {
  std::filesystem::path directory = std::filesystem::temp_directory_path();
  std::string json;
  bool quick = false, full = false, smoke = false;

  BenchOptions options() const;  // reports progress on stderr
};
void add_options(CLI::App& command, Request& request);

// An exit status: 1, with the reason on stderr, if it cannot be written. An empty name: nothing is written.
int write_json(const std::string& file, const nlohmann::ordered_json& json);
// "sluice-bench: ..." on stderr; 1.
int failed(const std::string& what);

void add_scenario_command(CLI::App& app, const Scenario& scenario, int& status);
void add_goals_command(CLI::App& app, int& status);

}  // namespace sluice::bench
