// SPDX-License-Identifier: MIT
#include "plugin/contents/replicas.h"

#include <cerrno>
#include <utility>

#include "base/format.h"

namespace sluice::plugin {

void Replicas::expect(std::uint32_t lane, std::size_t followers) {
  const Lock lock(mutex_);
  led_[lane].followers = followers;
}

void Replicas::name(const std::string& working, std::string final_name) {
  const Lock lock(mutex_);
  names_.insert_or_assign(working, std::move(final_name));
}

std::optional<std::string> Replicas::final_name(const std::string& working) const {
  const Lock lock(mutex_);
  const auto known = names_.find(working);
  return known != names_.end() ? std::optional(known->second) : std::nullopt;
}

Result<void> Replicas::name_runs(Sidecar& sidecar, const std::string& owner) const {
  for (KnownRuns& runs : sidecar.replicas) {
    bool all = true;
    for (std::string& name : runs.files) {
      const auto named = final_name(name);
      if (!named && sidecar.replicas_left_out)
        return Error{EINVAL,
                     formatted("{} has contents that are only in the file of another process, which CRIU has "
                               "not asked for; dump with SLUICE_DEDUP=off [SL-D100]",
                               owner)};
      all = all && named;
      name = named.value_or(name);
    }
    if (!all) runs = {};
  }
  return {};
}

std::set<std::string> files_with_much_of(const Sidecar& sidecar) {
  constexpr std::uint64_t kQuarter = 4;
  std::set<std::string> names;
  for (std::size_t file = 0; file < sidecar.replicas.size(); ++file) {
    const KnownRuns& runs = sidecar.replicas[file];
    std::vector<std::uint64_t> units(runs.files.size());
    for (const KnownRun& run : runs.runs) units[run.file] += run.units;
    for (std::size_t i = 0; i < units.size(); ++i)
      if (units[i] * kQuarter >= sidecar.tables[file].sums.size()) names.insert(runs.files[i]);
  }
  return names;
}

Replicas::Member::Member(Replicas& all, std::uint32_t lane, std::span<const PlannedLeader> follows,
                         const std::function<std::shared_ptr<LeaderLane>()>& leads)
    : all_(all), follows_(follows) {
  const Lock lock(all_.mutex_);
  for (const PlannedLeader& planned : follows_)
    if (const auto led = all_.led_.find(planned.lane); led != all_.led_.end() && led->second.lane)
      leaders_.push_back({led->second.lane, planned.bos});
  if (const auto own = all_.led_.find(lane); own != all_.led_.end()) own->second.lane = own_ = leads();
}

Replicas::Member::~Member() {
  if (own_) own_->end(std::nullopt);
  const Lock lock(all_.mutex_);
  for (const PlannedLeader& planned : follows_)
    if (const auto led = all_.led_.find(planned.lane); led != all_.led_.end() && --led->second.followers == 0)
      all_.led_.erase(led);
}

}  // namespace sluice::plugin
