// SPDX-License-Identifier: MIT
#include "plugin/dump/content_schedule.h"

#include <algorithm>
#include <map>

namespace sluice::plugin {

// Contents of streams begin when CRIU says what a file is called, and share the staging memory with those
// that will flow beside them.
Result<void> ContentSchedule::start(std::vector<DumpContents*> waiting, const DumpContents* wanted,
                                    std::optional<int> id, bool all_known) {
  const auto drop_others = [&] {
    std::erase_if(waiting, [wanted](const DumpContents* one) { return wanted != nullptr && one != wanted; });
  };
  const bool all_flow = all_known && (streaming() || config_.parallel);
  if (!all_flow) drop_others();
  if (waiting.empty()) return {};
  if (!all_flow || !std::exchange(all_share_, true)) share_staging(waiting);
  if (streaming()) drop_others();
  for (DumpContents* contents : waiting) {
    if (contents != wanted && !contents->has_room()) continue;
    SLUICE_TRY(check_stopped(shared_));
    SLUICE_TRY(contents->start(streaming() ? id : std::nullopt));
  }
  return {};
}

void ContentSchedule::share_staging(std::span<DumpContents* const> sharers) {
  std::map<std::uint32_t, unsigned> lanes_by_minor;
  for (DumpContents* contents : sharers) {
    for (const GpuContents& gpu : contents->waiting()) ++lanes_by_minor[gpu.render_minor];
  }
  std::size_t lanes = 0;
  for (const auto& [minor, of_gpu] : lanes_by_minor)
    lanes += std::min<std::size_t>(of_gpu, config_.lanes_at_once());
  shared_.lanes = std::max<std::size_t>(lanes, 1);
  for (DumpContents* contents : sharers) {
    for (GpuContents& gpu : contents->waiting()) gpu.sharers = lanes_by_minor[gpu.render_minor];
  }
}

}  // namespace sluice::plugin
