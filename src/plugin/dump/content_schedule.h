// SPDX-License-Identifier: MIT
// Which contents of a dump flow now, and which wait: one after another where files come one by one, else all
// at once for which the staging memory has room. What waits flows when others have ended, at the latest when
// CRIU asks for it.
//
// Main thread only.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "plugin/dump/dump_contents.h"

namespace sluice::plugin {

class ContentSchedule {
 public:
  // Borrowed.
  ContentSchedule(const Config& config, SharedByJobs& shared) : config_(config), shared_(shared) {}

  // `waiting`: all that were begun and not started. `wanted`: the one that CRIU asks for, under `id`; null
  // where it has not asked yet. `all_known`: no others will come. Errors: ECANCELED once the dump is stopped.
  Result<void> start(std::vector<DumpContents*> waiting, const DumpContents* wanted, std::optional<int> id,
                     bool all_known);

 private:
  void share_staging(std::span<DumpContents* const> sharers);

  const Config& config_;
  SharedByJobs& shared_;
  bool all_share_ = false;  // contents of the whole tree have divided the staging memory
};

}  // namespace sluice::plugin
