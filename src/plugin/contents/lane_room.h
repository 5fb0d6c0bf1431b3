// SPDX-License-Identifier: MIT
// How many lanes use one GPU's staging memory at once: as many as it suffices for, however many of that GPU's
// files are open. The others wait.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>

#include "base/mutex.h"
#include "pipeline/lane_world.h"

namespace sluice::plugin {

// Any thread.
class LaneRoom {
 public:
  // `world` is borrowed.
  explicit LaneRoom(LaneWorld& world = LaneWorld::real()) : world_(world) {}

  // Room for one lane, for the object's life. The LaneRoom outlives it.
  class Place {
   public:
    // Waits until fewer than `most` lanes of GPU `render_minor` have a place, or until `gives_up()`, which is
    // called again after each wake().
    template <class GivesUp>
    Place(LaneRoom& room, std::uint32_t render_minor, std::size_t most, const GivesUp& gives_up)
        : room_(room), minor_(render_minor) {
      Lock lock(room_.mutex_);
      std::size_t& lanes = room_.lanes_[minor_];
      while (lanes >= most && !gives_up()) room_.world_.wait(lock, room_.changed_);  // unreached: a race
      taken_ = lanes < most;
      if (taken_) ++lanes;
    }
    ~Place() {
      if (!taken_) return;
      const Lock lock(room_.mutex_);
      --room_.lanes_.find(minor_)->second;
      room_.world_.wake(room_.changed_);
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    // False: it gave up.
    explicit operator bool() const { return taken_; }

   private:
    LaneRoom& room_;
    std::uint32_t minor_;
    bool taken_ = false;
  };

  // Wakes waiting lanes to check whether they give up.
  void wake() {
    const Lock lock(mutex_);
    world_.wake(changed_);
  }

 private:
  LaneWorld& world_;
  Mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint32_t, std::size_t> lanes_ SLUICE_GUARDED_BY(mutex_);  // by render minor
};

}  // namespace sluice::plugin
