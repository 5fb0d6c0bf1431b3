// SPDX-License-Identifier: MIT
// Decides which contents of a dump flow and which wait. If files come one by one, they flow one after
// another; else as many at once as the staging memory has room for. The rest flows when others have ended, at
// the latest when CRIU asks for it.
//
// Main thread only.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "plugin/dump/contents/dump_contents.h"

namespace sluice::plugin {

class ContentSchedule {
 public:
  // Borrowed.
  ContentSchedule(const settings::Config& config, SharedByJobs& shared) : config_(config), shared_(shared) {}

  // `waiting`: all begun and not started. `wanted`: the one that CRIU asks for, under `id`; null if it has
  // not asked yet. `all_known`: there will be no more. Errors: ECANCELED once the dump is stopped.
  Result<void> start(std::vector<DumpContents*> waiting, const DumpContents* wanted, std::optional<int> id,
                     bool all_known);

 private:
  void share_staging(std::span<DumpContents* const> sharers);

  const settings::Config& config_;
  SharedByJobs& shared_;
  bool all_share_ = false;  // contents of the whole tree share the staging memory
};

}  // namespace sluice::plugin
