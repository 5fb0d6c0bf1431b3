// SPDX-License-Identifier: MIT
#include "command/command.h"

#include <cstdio>
#include <fstream>
#include <memory>

namespace sluice::bench {

BenchOptions Request::options() const {
  return {directory,
          smoke  ? Scale::Smoke
          : full ? Scale::Full
                 : Scale::Quick,
          [](const std::string& line) { (void)std::fprintf(stderr, "  %s ...\n", line.c_str()); }};
}

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
  out.close();
  return out ? 0 : failed("cannot write " + file);
}

int failed(const std::string& what) {
  (void)std::fprintf(stderr, "sluice-bench: %s\n", what.c_str());
  return 1;
}

void add_scenario_command(CLI::App& app, const Scenario& scenario, int& status) {
  CLI::App* command = app.add_subcommand(scenario.name, scenario.help);
  const auto request = std::make_shared<Request>();
  add_options(*command, *request);
  command->callback([request, &scenario, &status] {
    const auto report = scenario.run(request->options());
    if (!report) {
      status = failed(std::string(scenario.name) + ": " + report.error().what);
      return;
    }
    (void)std::fputs(table_of(*report).c_str(), stdout);
    status = write_json(request->json, json_of(*report));
  });
}

}  // namespace sluice::bench
