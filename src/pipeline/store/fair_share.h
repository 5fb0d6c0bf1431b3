// SPDX-License-Identifier: MIT
// Lanes that use one disk at the same time keep step there. Nothing else ties them together, and a lane that
// falls behind by chance would stay behind until the others have ended.
//
// Fair queueing by start time: a lane's position grows with each chunk that comes back from the disk. A lane
// that leads the last of those on the disk by a few chunks begins another only when it has none there. It is
// throttled to one at a time, never stopped, so no lane waits for another and none has to be woken. A lane
// that comes to the disk with nothing there takes at least the last one's position. So a lane that is slow
// for another reason (its GPU, its checksum) saves up no claim and slows no other down.
//
// A lane keeps some of its slots off the disk. A disk that reports reads in bursts would otherwise idle after
// a burst until the first of its chunks has passed the lane. The slots kept back are free then and go to the
// disk at once.
//
// Lanes of a later turn use spare disk time: they are throttled while a lane of an earlier turn has a chunk
// on the disk. Positions count among lanes of one turn.
//
// Threads: a member belongs to one lane's thread; members of one share may be used at once.
#pragma once

#include <cstdint>
#include <vector>

#include "base/mutex.h"

namespace sluice {

// How many of `slots` a lane lets on the disk at once: a quarter stays back.
constexpr std::uint32_t most_on_disk(std::uint32_t slots) {
  return slots - slots / 4;
}

class FairShare {
 public:
  // One lane's part in it. All calls are cheap compared with a chunk.
  class Member {
   public:
    // `share`: borrowed for the member's life; null: the lane has the disk to itself. `most`: chunks of this
    // lane that may be there at once, at least 1.
    explicit Member(FairShare* share, unsigned turn = 0, std::uint32_t most = UINT32_MAX);
    ~Member();
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    // Whether another chunk may go to the disk now; if so, it counts as there. Always true if this lane has
    // none there.
    bool begin();
    // One that began has come back.
    void end();

   private:
    friend class FairShare;
    FairShare* share_;
    unsigned turn_;
    std::uint32_t most_;
    // Both in chunks, written by this lane and read by others, with the share's mutex.
    std::uint64_t on_disk_ = 0;
    std::uint64_t position_ = 0;
  };

 private:
  // The position of the last member of a turn with chunks on the disk; `otherwise` if none has any.
  std::uint64_t last_position(unsigned turn, std::uint64_t otherwise) const SLUICE_REQUIRES(mutex_);
  // Whether a member of an earlier turn has chunks on the disk.
  bool earlier_on_disk(unsigned turn) const SLUICE_REQUIRES(mutex_);

  Mutex mutex_;
  std::vector<const Member*> members_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice
