// SPDX-License-Identifier: MIT
// sluice-bench: measures the engine beside the machine's limits, in one run.
#include <cstdio>
#include <exception>

#include "command/command.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app("What the engine does, beside what the machine can do, in one run", "sluice-bench");
  app.require_subcommand(1);
  int status = 0;
  sluice::bench::add_goals_command(app, status);
  for (const sluice::bench::Scenario& scenario : sluice::bench::scenarios())
    sluice::bench::add_scenario_command(app, scenario, status);
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
