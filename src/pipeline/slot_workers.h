// SPDX-License-Identifier: MIT
// Threads of a lane for work on slots that would block its loop for too long. One core hashes less than a
// fast GPU link and a fast disk carry.
//
// A job's end reaches the lane's reactor as the completion of the slot's first Op, whose eventfd polls
// readable. So the lane still waits in one place. Only the lane's thread calls run() and take(). The
// destructor runs queued jobs and joins; slots, buffers and work must live until then. Memory is bounded by
// the number of slots and allocated at the start.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "pipeline/lane_thread.h"
#include "pipeline/lane_world.h"
#include "pipeline/reactor/reactor.h"
#include "pipeline/slot.h"

namespace sluice {

// Worker threads that each of `lanes` may have without exceeding `cpus` threads; at most 4, which a PCIe 5
// x16 link needs (52 GB/s; docs/measurements/real-dma.md). 0: there is only room for the lanes' own threads.
unsigned workers_of_lane(std::size_t cpus, std::size_t lanes);
// The same for the CPUs that this process may run on.
unsigned spare_workers(std::size_t lanes);

// A worker's job. work() is called from several threads at once, for different slots.
class SlotWork {
 public:
  virtual Result<void> work(Slot& slot) = 0;

 protected:
  ~SlotWork() = default;
};

class SlotWorkers {
 public:
  // `threads` > 0 threads named `name` for slots with an index below `slots`. Errors: EAGAIN (threads),
  // EMFILE. `world`: borrowed.
  static Result<std::unique_ptr<SlotWorkers>> start(const std::string& name, unsigned threads,
                                                    std::uint32_t slots,
                                                    LaneWorld& world = LaneWorld::real());
  ~SlotWorkers();
  SlotWorkers(const SlotWorkers&) = delete;
  SlotWorkers& operator=(const SlotWorkers&) = delete;

  // Starts `work` on `slot`; slot.op() completes when it is done. REQUIRES: no work on this slot runs.
  void run(Slot& slot, SlotWork& work, Reactor& reactor);
  // The result of the work. `completion`: of slot.op(). REQUIRES: called once for each run().
  Result<void> take(const Slot& slot, std::int32_t completion);

 private:
  struct Job {
    Slot* slot = nullptr;
    SlotWork* work = nullptr;
  };
  // One per slot; written by a worker before it writes the eventfd, read by the lane after it has read that.
  struct Outcome {
    UniqueFd done;
    Result<void> result;
  };

  SlotWorkers(std::uint32_t slots, LaneWorld& world);
  Result<void> serve();

  LaneWorld& world_;
  std::vector<Outcome> outcomes_;  // by slot
  Mutex mutex_;
  std::condition_variable wake_;
  std::vector<Job> queue_ SLUICE_GUARDED_BY(mutex_);  // a ring as large as there are slots
  std::size_t first_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::size_t queued_ SLUICE_GUARDED_BY(mutex_) = 0;
  bool ending_ SLUICE_GUARDED_BY(mutex_) = false;
  std::vector<LaneThread> threads_;
};

}  // namespace sluice
