// SPDX-License-Identifier: MIT
// A lane of a dump whose contents later lanes of the same dump may have, too: its sums as far as they are
// known, and its file once that is complete. Data-parallel jobs hold the same weights on every GPU; such
// replicas are written once.
//
// The lane itself publishes. Lanes that follow it read, wait for a chunk (ReplicaGate) and, at last, for the
// lane's end. They come after it in the order of the plan, so nobody waits in a circle.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/checksum/known_files.h"
#include "pipeline/checksum/known_runs.h"
#include "pipeline/lane_world.h"

namespace sluice {

// Any thread, except as said.
class LeaderLane {
 public:
  // One file, whose table is filled while the lane runs. `world` is borrowed.
  LeaderLane(const ImageLayout& layout, std::shared_ptr<const KnownFiles::Tables> tables, std::string name,
             LaneWorld& world)
      : files(layout, std::move(tables), {std::move(name)}),
        hashed_(static_cast<std::size_t>(layout.chunk_count())),
        world_(world) {}

  const KnownFiles files;

  // The lane: all sums of a chunk are in the table.
  void publish(std::uint64_t chunk);
  // The lane: its last write and its last clone are done.
  struct Complete {
    UniqueFd file;        // open for reading
    RunIndex in_parent;   // what is left to the parent's files
    RunIndex in_leaders;  // what this lane's own leaders have
  };
  // Nothing: it has failed. Only the first call counts.
  void end(std::optional<Complete> complete);

  // Whether the sums of a range of its file are known. REQUIRES: bytes > 0.
  bool has(std::uint64_t file_offset, std::uint64_t bytes) const;
  // The first chunk of a range that a follower still has to wait for; nothing: none, or the lane has ended.
  std::optional<std::uint64_t> unsettled(std::uint64_t file_offset, std::uint64_t bytes) const;
  // Writes to the eventfd once that chunk is settled. False: it is, so nothing will be written. The eventfd
  // is borrowed until it was written, or until forget().
  bool watch(std::uint64_t chunk, int event);
  void forget(int event);

  // Waits for the end. Errors: ECANCELED if the lane has failed, or once `gives_up()`, which is asked now and
  // then.
  Result<void> wait_for_end(const std::function<bool()>& gives_up);
  // What end() was given. REQUIRES, for all three: wait_for_end() has succeeded.
  int file() const { return complete_.file.get(); }
  const RunIndex& in_parent() const { return complete_.in_parent; }
  const RunIndex& in_leaders() const { return complete_.in_leaders; }

 private:
  enum class State : std::uint8_t { Runs, Complete, Failed };
  struct Watcher {
    std::uint64_t chunk = 0;
    int event = -1;
  };
  bool is_settled(std::uint64_t chunk) const {
    return hashed_[static_cast<std::size_t>(chunk)] || state_ != State::Runs;
  }
  void wake();

  std::vector<std::atomic<bool>> hashed_;  // by chunk
  std::atomic<State> state_{State::Runs};
  std::atomic<std::size_t> watching_{0};  // watchers_.size()
  LaneWorld& world_;
  mutable Mutex mutex_;
  std::condition_variable ended_;
  std::vector<Watcher> watchers_ SLUICE_GUARDED_BY(mutex_);
  Complete complete_;  // constant once state_ is Complete
};

// A leader, and which of its BOs may have the contents of a follower's.
struct Leader {
  static constexpr std::uint32_t kNoBo = UINT32_MAX;
  std::shared_ptr<LeaderLane> lane;
  std::vector<std::uint32_t> bos;  // by BO of the follower; ascending, except for kNoBo
  // Whether both take their chunks in the same order. If not, the follower never waits for a chunk.
  bool in_step = true;
};

}  // namespace sluice
