// SPDX-License-Identifier: MIT
#include "plugin/contents/replicas.h"

#include <utility>

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
