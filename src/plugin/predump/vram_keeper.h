// SPDX-License-Identifier: MIT
// While a pre-dump copies beside the job, this thread makes sure that the job gets back the memory it frees,
// however slow the disk is. It closes dma-bufs of BOs (bo_keeper.h).
#pragma once

#include <condition_variable>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "pipeline/lane_thread.h"
#include "plugin/predump/bo_keeper.h"

namespace sluice::plugin {

// Main thread.
class VramKeeper {
 public:
  VramKeeper() = default;
  ~VramKeeper() { stop(); }
  VramKeeper(const VramKeeper&) = delete;
  VramKeeper& operator=(const VramKeeper&) = delete;

  // Before start().
  void add(std::shared_ptr<BoKeeper> bos) { all_.push_back(std::move(bos)); }
  // Errors: those of making a thread.
  Result<void> start();
  void stop();

  // Of all lanes.
  BoKeeper::Counts counts() const;

 private:
  void watch();
  void look();

  std::vector<std::shared_ptr<BoKeeper>> all_;
  std::optional<LaneThread> thread_;
  Mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ SLUICE_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::plugin
