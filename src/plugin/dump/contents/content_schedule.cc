// SPDX-License-Identifier: MIT
#include "plugin/dump/contents/content_schedule.h"

#include <algorithm>
#include <map>

namespace sluice::plugin {

// One way, contents begin when CRIU names their file. They share the staging memory with the contents that
// will run beside them.
Result<void> ContentSchedule::start(std::vector<DumpContents*> waiting, const DumpContents* wanted,
                                    std::optional<int> id, bool all_known) {
  const auto drop_others = [&] {
    std::erase_if(waiting, [wanted](const DumpContents* one) { return wanted != nullptr && one != wanted; });
  };
  const bool one_way = shared_.store.one_way();
  const bool all_flow = all_known && (one_way || config_.parallel);
  if (!all_flow) drop_others();
  if (waiting.empty()) return {};
  if (!all_flow || !std::exchange(all_share_, true)) share_staging(waiting);
  if (one_way) drop_others();
  for (DumpContents* contents : waiting) {
    if (contents != wanted && !contents->has_room()) continue;
    SLUICE_TRY(check_stopped(shared_));
    SLUICE_TRY(contents->start(one_way ? id : std::nullopt));
  }
  return {};
}

void ContentSchedule::share_staging(std::span<DumpContents* const> sharers) {
  std::map<std::uint32_t, unsigned> lanes_by_minor;
  for (DumpContents* contents : sharers) {
    for (const LaneContents& lane : contents->waiting()) ++lanes_by_minor[lane.render_minor];
  }
  std::size_t lanes = 0;
  for (const auto& [minor, of_gpu] : lanes_by_minor)
    lanes += std::min<std::size_t>(of_gpu, config_.lanes_at_once());
  shared_.lanes = std::max<std::size_t>(lanes, 1);
  for (DumpContents* contents : sharers) {
    for (LaneContents& lane : contents->waiting()) lane.sharers = lanes_by_minor[lane.render_minor];
  }
}

}  // namespace sluice::plugin
