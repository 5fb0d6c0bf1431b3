// SPDX-License-Identifier: MIT
// sluice-bench: what the engine does, beside what the machine can do, in one run.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>

#include "scenario/scenario.h"

namespace {

using namespace sluice::bench;

struct Request {
  std::filesystem::path directory = std::filesystem::temp_directory_path();
  std::string json;
  bool quick = false, full = false, smoke = false;

  BenchOptions options() const {
    return {directory,
            smoke  ? Scale::Smoke
            : full ? Scale::Full
                   : Scale::Quick,
            [](const std::string& line) { (void)std::fprintf(stderr, "  %s ...\n", line.c_str()); }};
  }
};

void add_options(CLI::App& command, Request& request) {
  command.add_option("--dir", request.directory, "where the files go: on the disk to be measured")
      ->check(CLI::ExistingDirectory);
  command.add_option("--json", request.json, "also write the report as JSON to this file");
  auto* quick = command.add_flag("--quick", request.quick, "minutes in all (the default)");
  auto* full = command.add_flag("--full", request.full, "sizes and repetitions for figures to be published");
  auto* smoke =
      command.add_flag("--smoke", request.smoke, "shows only that it runs; its figures say nothing");
  quick->excludes(full)->excludes(smoke);
  full->excludes(smoke);
}

int write_json(const std::string& file, const nlohmann::ordered_json& json) {
  if (file.empty()) return 0;
  std::ofstream out(file);
  out << json.dump(2) << "\n";
  if (out.good()) return 0;
  (void)std::fprintf(stderr, "sluice-bench: cannot write %s\n", file.c_str());
  return 1;
}

int run_scenario(const Scenario& scenario, const Request& request) {
  const auto report = scenario.run(request.options());
  if (!report) {
    (void)std::fprintf(stderr, "sluice-bench: %s: %s\n", scenario.name, report.error().what.c_str());
    return 1;
  }
  (void)std::fputs(table_of(*report).c_str(), stdout);
  return write_json(request.json, json_of(*report));
}

int run(int argc, char** argv) {
  CLI::App app("What the engine does, beside what the machine can do, in one run", "sluice-bench");
  app.require_subcommand(1);
  Request request;
  int status = 0;
  for (const Scenario& scenario : scenarios()) {
    CLI::App* command = app.add_subcommand(scenario.name, scenario.help);
    add_options(*command, request);
    command->callback([&request, &scenario, &status] { status = run_scenario(scenario, request); });
  }
  CLI11_PARSE(app, argc, argv);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    (void)std::fprintf(stderr, "sluice-bench: %s\n", error.what());
    return 1;
  }
}
