// SPDX-License-Identifier: MIT
#include "plugin/dump/plan/replicas.h"

#include <algorithm>
#include <map>
#include <utility>

namespace sluice::plugin {
namespace {

// The nth BO of a size, by size and n.
using BySize = std::map<std::pair<std::uint64_t, std::uint32_t>, std::uint32_t>;

// Calls `take` with each BO and its place among those of its size.
template <class Take>
void each_in_turn(const PagesSet& set, Take take) {
  std::map<std::uint64_t, std::uint32_t> seen;
  for (std::uint32_t bo = 0; bo < set.bos.size(); ++bo) {
    const std::uint64_t bytes = set.bos[bo].bytes;
    take(bo, std::pair(bytes, seen[bytes]++));
  }
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

}  // namespace

std::vector<std::uint32_t> corresponding_bos(const PagesSet& follower, const PagesSet& leader) {
  BySize theirs;
  each_in_turn(leader, [&](std::uint32_t bo, auto place) { theirs.emplace(place, bo); });
  std::vector<std::uint32_t> bos(follower.bos.size(), Leader::kNoBo);
  each_in_turn(follower, [&](std::uint32_t bo, auto place) {
    if (const auto found = theirs.find(place); found != theirs.end()) bos[bo] = found->second;
  });
  keep_ascending(bos);
  return bos;
}

void plan_replicas(std::vector<std::vector<LaneContents>>& lanes) {
  std::vector<LaneContents*> all;
  for (std::vector<LaneContents>& of_file : lanes)
    for (LaneContents& lane : of_file) all.push_back(&lane);
  for (std::uint32_t number = 0; number < all.size(); ++number) {
    LaneContents& lane = *all[number];
    lane.number = number;
    for (std::uint32_t other = number; other-- > 0 && lane.leaders.size() < kMostLeaders;) {
      if (lane.pages.drm_minor || all[other]->pages.drm_minor) continue;
      std::vector<std::uint32_t> bos = corresponding_bos(lane.pages, all[other]->pages);
      std::uint64_t bytes = 0;
      for (std::size_t bo = 0; bo < bos.size(); ++bo)
        if (bos[bo] != Leader::kNoBo) bytes += lane.pages.bos[bo].bytes;
      if (bytes >= kLeastReplicaBytes) lane.leaders.push_back({other, std::move(bos)});
    }
  }
}

}  // namespace sluice::plugin
