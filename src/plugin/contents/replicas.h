// SPDX-License-Identifier: MIT
// Who of a dump's lanes leads, and who still follows: a leader's sums and its file are kept until the last
// lane that may follow it has ended.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "images/sums.h"
#include "pipeline/replica/leader_lane.h"

namespace sluice::plugin {

// A lane that another may follow, as planned.
struct PlannedLeader {
  std::uint32_t lane = 0;          // its number in the plan, lower than the follower's
  std::vector<std::uint32_t> bos;  // see Leader::bos
};

// Any thread. Outlives all lanes.
class Replicas {
 public:
  // Before the first lane begins: that many lanes may follow it. Once for each lane that leads.
  void expect(std::uint32_t lane, std::size_t followers);

  // A lane's file, which has had a working name, gets its final one.
  void name(const std::string& working, std::string final_name);
  // Gives a sidecar's runs the final names of leaders' files. If nothing was left out, runs are only a hint.
  // `owner`: whose sidecar, for messages. Errors: EINVAL if the host has not asked for a leader's file yet.
  Result<void> name_runs(Sidecar& sidecar, const std::string& owner) const;

  // A lane's part in it, from when it has its place to run until it has ended.
  class Member {
   public:
    // `lane`: its number. `leads`: called if others may follow it. `follows` is borrowed.
    Member(Replicas& all, std::uint32_t lane, std::span<const PlannedLeader> follows,
           const std::function<std::shared_ptr<LeaderLane>()>& leads);
    // Without complete(): the lane has failed.
    ~Member();
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    // Null if nobody may follow it.
    LeaderLane* leads() const { return own_.get(); }
    // The lanes before it that have begun. Moves them out.
    std::vector<Leader> take_leaders() { return std::move(leaders_); }
    // REQUIRES: it leads.
    void complete(LeaderLane::Complete complete) { own_->end(std::move(complete)); }

   private:
    Replicas& all_;
    std::span<const PlannedLeader> follows_;
    std::shared_ptr<LeaderLane> own_;
    std::vector<Leader> leaders_;
  };

 private:
  // Nothing: it has none yet.
  std::optional<std::string> final_name(const std::string& working) const;

  struct Led {
    std::shared_ptr<LeaderLane> lane;  // null: it has not begun
    std::size_t followers = 0;         // that have not ended
  };

  mutable Mutex mutex_;
  std::map<std::uint32_t, Led> led_ SLUICE_GUARDED_BY(mutex_);
  std::map<std::string, std::string> names_ SLUICE_GUARDED_BY(mutex_);  // final, by working name
};

// The files of other lanes that have a quarter or more of the units of one of the sidecar's files. A restore
// reads them once for all lanes; with less in common, that costs more than it saves.
std::set<std::string> files_with_much_of(const Sidecar& sidecar);

}  // namespace sluice::plugin
