// SPDX-License-Identifier: MIT
#include "plot/saved.h"

#include <algorithm>
#include <cerrno>
#include <fstream>

namespace sluice::bench {

const Report* Saved::find(const std::string& scenario) const {
  const auto found = std::find_if(reports.begin(), reports.end(),
                                  [&](const Report& report) { return report.scenario == scenario; });
  return found == reports.end() ? nullptr : &*found;
}

Result<Saved> read_saved(const std::filesystem::path& file) {
  errno = 0;
  std::ifstream in(file);
  if (!in) return make_error(errno != 0 ? errno : EIO, file);
  const auto json = nlohmann::ordered_json::parse(in, nullptr, false);
  if (!json.is_object()) return make_error(EINVAL, file.string() + " is no report of sluice-bench");
  Saved saved;
  if (!json.contains("reports")) {
    SLUICE_TRY_ASSIGN(Report report, report_of(json));
    saved.reports.push_back(std::move(report));
    return saved;
  }
  for (const auto& each : json["reports"]) {
    SLUICE_TRY_ASSIGN(Report report, report_of(each));
    saved.reports.push_back(std::move(report));
  }
  saved.goals = json.value("goals", nlohmann::ordered_json());
  saved.machine = json.value("machine", nlohmann::ordered_json());
  return saved;
}

}  // namespace sluice::bench
