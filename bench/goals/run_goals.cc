// SPDX-License-Identifier: MIT
#include "goals/run_goals.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>
#include <string_view>

#include "goals/measured_machine.h"
#include "measure/clock.h"

namespace sluice::bench {
namespace {

constexpr double kQuietCores = 0.1;  // others may use this much without a remark

std::vector<Goal> wanted_goals(const std::vector<unsigned>& only) {
  std::vector<Goal> wanted;
  for (const Goal& goal : goals()) {
    if (only.empty() || std::find(only.begin(), only.end(), goal.id) != only.end()) wanted.push_back(goal);
  }
  return wanted;
}

// No goal has a bar on these: the raw ceilings beside all others, and the cost of small BOs. Published
// figures need them.
constexpr std::array<std::string_view, 2> kBeside = {"limits", "small"};

bool needs(const std::vector<Goal>& goals, const std::string& scenario) {
  return std::any_of(goals.begin(), goals.end(), [&](const Goal& goal) {
    return std::any_of(goal.bars.begin(), goal.bars.end(),
                       [&](const Bar& bar) { return bar.scenario == scenario; });
  });
}

// Those that a bar is on: a quick run measures no others.
std::set<std::string> cases_of(const std::vector<Goal>& goals, const std::string& scenario) {
  std::set<std::string> cases;
  for (const Goal& goal : goals) {
    for (const Bar& bar : goal.bars) {
      if (bar.scenario == scenario) cases.insert(bar.case_name);
    }
  }
  return cases;
}

// Before it fills the disk and fails half-way.
Result<void> check_space(const Scenario& scenario, const BenchOptions& options) {
  const unsigned gib = options.by_scale(0u, scenario.quick_gib, scenario.full_gib);
  struct statvfs disk {};
  if (gib == 0 || ::statvfs(options.directory.c_str(), &disk) != 0) return {};
  const double free_gib = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize) / kGiB;
  if (free_gib >= gib) return {};
  return Error{ENOSPC, "not run: it needs " + std::to_string(gib) + " GiB in " + options.directory.string() +
                           ", which has " + number(free_gib) + " free"};
}

const char* name_of(Scale scale) {
  return scale == Scale::Smoke ? "smoke" : scale == Scale::Quick ? "quick" : "full";
}

}  // namespace

GoalsRun run_goals(const BenchOptions& options, const std::vector<unsigned>& only) {
  const std::vector<Goal> wanted = wanted_goals(only);
  const bool publishable = only.empty() && options.scale != Scale::Quick;
  const Machine machine = machine_of(options.directory);
  const OthersMeter others;
  const auto began = Clock::now();
  std::vector<Report> reports;
  nlohmann::ordered_json told = nlohmann::ordered_json::array(), failed = told;
  for (const Scenario& scenario : scenarios()) {
    const bool beside = std::find(kBeside.begin(), kBeside.end(), scenario.name) != kBeside.end();
    if (!needs(wanted, scenario.name) && !(publishable && beside)) continue;
    BenchOptions own = options;
    if (options.scale == Scale::Quick) own.cases = cases_of(wanted, scenario.name);
    own.tell = [&](const std::string& line) { options.tell(std::string(scenario.name) + ": " + line); };
    const auto begin = Clock::now();
    const auto room = check_space(scenario, options);
    Result<Report> report = room ? scenario.run(own) : room.error();
    if (report) {
      told.push_back(json_of(*report));
      told.back()["seconds"] = seconds_since(begin);
      reports.push_back(std::move(*report));
    } else {
      failed.push_back({{"scenario", scenario.name}, {"error", report.error().what}});
    }
  }
  std::vector<GoalResult> results;
  for (const Goal& goal : wanted) results.push_back(judge(goal, reports, machine.cores));

  const double others_cores = others.cores(), seconds = seconds_since(began);
  GoalsRun run;
  run.complete = failed.empty();
  run.text = headline_of(reports) + text_of(machine) + table_of(results);
  for (const auto& each : failed)
    run.text += each["scenario"].get<std::string>() + " failed: " + each["error"].get<std::string>() + "\n";
  if (others_cores > kQuietCores)
    run.text += "not a quiet machine: others kept " + number(others_cores) + " of its cores busy\n";
  run.text += "measured in " + number(seconds) + " s\n";
  if (options.scale == Scale::Smoke) run.text += "smoke sizes: these figures say nothing of speed\n";
  run.json = {{"goals", json_of(results)},  {"scale", name_of(options.scale)},
              {"seconds", seconds},         {"machine", json_of(machine)},
              {"reports", std::move(told)}, {"failed", std::move(failed)}};
  run.json["machine"]["others_busy_cores"] = others_cores;
  return run;
}

}  // namespace sluice::bench
