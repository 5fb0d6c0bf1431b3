// SPDX-License-Identifier: MIT
// Lanes that use one disk at the same time keep step there: nothing else ties them together, and a lane that
// falls behind by chance would stay behind until the others have ended.
//
// Fair queueing by start time: a lane's position grows with each chunk that comes back from the disk. One
// that leads the last of those on the disk by a few chunks begins another only when it has none there: it is
// throttled to one at a time, never stopped, so no lane waits for another and none has to be woken. A lane
// that comes to the disk with nothing there takes the last one's position at least: who is slow for another
// reason (its GPU, its checksum) saves up no claim and slows nobody down.
//
// A lane keeps some of its slots off the disk: a disk that tells of what it has read in bursts would
// otherwise have nothing to do from the burst until the first of its chunks has been through the lane. What
// is kept back is free then, and goes there at once.
//
// Lanes of a later turn take what those of earlier ones leave: they are throttled while one of an earlier
// turn has something on the disk. Positions count among lanes of one turn.
//
// Threads: a member belongs to one lane's thread; members of one share may be used at once.
#pragma once

#include <cstdint>
#include <vector>

#include "base/mutex.h"

namespace sluice {

// What a lane of `slots` lets on the disk at once: a quarter stays back.
constexpr std::uint32_t most_on_disk(std::uint32_t slots) {
  return slots - slots / 4;
}

class FairShare {
 public:
  // One lane's part in it. All calls are cheap beside a chunk.
  class Member {
   public:
    // `share`: borrowed for the member's life; null: the lane has the disk for itself. `most`: chunks of this
    // lane that may be there at once, at least 1.
    explicit Member(FairShare* share, unsigned turn = 0, std::uint32_t most = UINT32_MAX);
    ~Member();
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    // Whether another chunk may go to the disk now; if so, it counts as there. Always true when this lane has
    // none there.
    bool begin();
    // One that began has come back.
    void end();

   private:
    friend class FairShare;
    FairShare* share_;
    unsigned turn_;
    std::uint32_t most_;
    std::uint64_t on_disk_ = 0;   // written by this lane, read by others: with the share's mutex, as is ...
    std::uint64_t position_ = 0;  // ... this, in chunks
  };

 private:
  // Of the last member of a turn that has something on the disk; `otherwise` when none has.
  std::uint64_t last_position(unsigned turn, std::uint64_t otherwise) const SLUICE_REQUIRES(mutex_);
  // Whether a member of an earlier turn has something on the disk.
  bool earlier_on_disk(unsigned turn) const SLUICE_REQUIRES(mutex_);

  Mutex mutex_;
  std::vector<const Member*> members_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice
