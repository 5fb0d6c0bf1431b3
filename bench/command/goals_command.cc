// SPDX-License-Identifier: MIT
#include <cstdio>
#include <memory>

#include "command/command.h"
#include "goals/run_goals.h"

namespace sluice::bench {

void add_goals_command(CLI::App& app, int& status) {
  CLI::App* command =
      app.add_subcommand("goals", "every goal beside its bar: which pass, which are short and why");
  const auto request = std::make_shared<Request>();
  const auto only = std::make_shared<std::vector<unsigned>>();
  add_options(*command, *request);
  std::vector<unsigned> ids;
  for (const Goal& goal : goals()) ids.push_back(goal.id);
  command->add_option("--only", *only, "only these goals, by number")->check(CLI::IsMember(ids));
  command->callback([request, only, &status] {
    const GoalsRun run = run_goals(request->options(), *only);
    (void)std::fputs(run.text.c_str(), stdout);
    status = write_json(request->json, run.json);
    if (!run.complete) status = 1;
  });
}

}  // namespace sluice::bench
