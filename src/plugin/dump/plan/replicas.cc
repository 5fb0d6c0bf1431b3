// SPDX-License-Identifier: MIT
#include "plugin/dump/plan/replicas.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace sluice::plugin {
namespace {

// A BO among those of its size: size, and how many come before it. By BO.
using Place = std::pair<std::uint64_t, std::uint32_t>;

std::vector<Place> places_of(const PagesSet& set) {
  std::map<std::uint64_t, std::uint32_t> seen;
  std::vector<Place> places;
  for (const PagesBo& bo : set.bos) places.emplace_back(bo.bytes, seen[bo.bytes]++);
  return places;
}

// Leaves a longest ascending part of what is not kNoBo, and makes the rest kNoBo.
void keep_ascending(std::vector<std::uint32_t>& bos) {
  std::vector<std::uint32_t> ends;                // by length - 1: the index of the smallest last member
  std::vector<std::uint32_t> before(bos.size());  // the member before it
  for (std::uint32_t i = 0; i < bos.size(); ++i) {
    if (bos[i] == Leader::kNoBo) continue;
    const auto at = std::lower_bound(ends.begin(), ends.end(), bos[i],
                                     [&](std::uint32_t end, std::uint32_t bo) { return bos[end] < bo; });
    before[i] = at == ends.begin() ? Leader::kNoBo : *std::prev(at);
    if (at == ends.end()) {
      ends.push_back(i);
    } else {
      *at = i;
    }
  }
  std::vector<std::uint32_t> kept(bos.size(), Leader::kNoBo);
  for (std::uint32_t i = ends.empty() ? Leader::kNoBo : ends.back(); i != Leader::kNoBo; i = before[i])
    kept[i] = bos[i];
  bos = std::move(kept);
}

// The processes are stopped meanwhile, and most pairs are alike: these cost one comparison.
std::vector<std::uint32_t> corresponding(const std::vector<Place>& follower,
                                         const std::vector<Place>& leader) {
  std::vector<std::uint32_t> bos(follower.size(), Leader::kNoBo);
  if (follower == leader) {
    std::iota(bos.begin(), bos.end(), 0U);
    return bos;
  }
  std::map<Place, std::uint32_t> theirs;
  for (std::uint32_t bo = 0; bo < leader.size(); ++bo) theirs.emplace(leader[bo], bo);
  for (std::size_t bo = 0; bo < follower.size(); ++bo)
    if (const auto found = theirs.find(follower[bo]); found != theirs.end()) bos[bo] = found->second;
  keep_ascending(bos);
  return bos;
}

}  // namespace

std::vector<std::uint32_t> corresponding_bos(const PagesSet& follower, const PagesSet& leader) {
  return corresponding(places_of(follower), places_of(leader));
}

void plan_replicas(std::vector<std::vector<LaneContents>>& lanes) {
  std::vector<LaneContents*> all;
  for (std::vector<LaneContents>& of_file : lanes)
    for (LaneContents& lane : of_file) all.push_back(&lane);
  std::vector<std::vector<Place>> places;  // by lane
  places.reserve(all.size());
  for (const LaneContents* const lane : all) places.push_back(places_of(lane->pages));
  for (std::uint32_t number = 0; number < all.size(); ++number) {
    LaneContents& lane = *all[number];
    lane.number = number;
    for (std::uint32_t other = number; other-- > 0 && lane.leaders.size() < kMostLeaders;) {
      if (lane.pages.drm_minor || all[other]->pages.drm_minor) continue;
      std::vector<std::uint32_t> bos = corresponding(places[number], places[other]);
      std::uint64_t bytes = 0;
      for (std::size_t bo = 0; bo < bos.size(); ++bo)
        if (bos[bo] != Leader::kNoBo) bytes += lane.pages.bos[bo].bytes;
      if (bytes >= kLeastReplicaBytes) lane.leaders.push_back({other, std::move(bos)});
    }
  }
}

}  // namespace sluice::plugin
