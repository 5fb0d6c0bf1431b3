// SPDX-License-Identifier: MIT
// While a pre-dump copies beside the job, this thread makes sure that the job gets the memory it asks for.
//
// What the job frees stays taken for as long as the pre-dump holds it (bo_keeper.h). So the pre-dump never
// holds more than is free: then a BO that is freed finds room for another one of its size. A thread looks
// again 50 times a second. It lets go of what the job has freed. If less is free than is held, it gives back
// the largest BOs first. Where the free memory is unknown, nothing is held.
//
// What is not held is the next share, if there is one: the job is stopped again and offers all its BOs.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "kfd/memory/vram_room.h"
#include "kfd/topology.h"
#include "pipeline/lane_thread.h"
#include "plugin/predump/bo_keeper.h"

namespace sluice::plugin {

// Main thread.
class MemoryKeeper {
 public:
  MemoryKeeper() = default;
  ~MemoryKeeper() { stop(); }
  MemoryKeeper(const MemoryKeeper&) = delete;
  MemoryKeeper& operator=(const MemoryKeeper&) = delete;

  // Before start(). This machine's.
  void set_machine(const kfd::Topology& topology, dev_t kfd_device);
  void add(std::shared_ptr<BoKeeper> bos) { all_.push_back(std::move(bos)); }
  const std::vector<std::shared_ptr<BoKeeper>>& all() const { return all_; }

  // Chooses what is held. Call at the start, and when lanes have been offered more. REQUIRES: the job is
  // stopped.
  void choose();
  // Errors: those of making a thread.
  Result<void> start();
  void stop();

  // A lane waits for memory that the next share may give it.
  bool needs_share() const;
  // What lanes wait for is given up from now on.
  void end_shares();

  // Of all lanes.
  BoKeeper::Counts counts() const;

 private:
  // What is free, by render minor. The system's is the same for all.
  using Rooms = std::map<std::uint32_t, MemoryUse>;
  Rooms rooms();
  void watch();
  bool look();
  void give_back(std::uint32_t render_minor, const MemoryUse& room);
  bool is_needed_by(BoKeeper& bos, const MemoryUse& room) const;
  template <class Use>
  MemoryUse sum(std::uint32_t render_minor, const Use& use) const;

  std::vector<std::uint32_t> minors_;  // of the machine's GPUs
  kfd::Topology machine_;
  std::optional<kfd::VramMeter> vram_;
  std::vector<std::shared_ptr<BoKeeper>> all_;
  std::optional<LaneThread> thread_;
  mutable Mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ SLUICE_GUARDED_BY(mutex_) = false;
  bool needs_share_ SLUICE_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::plugin
