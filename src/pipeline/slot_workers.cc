// SPDX-License-Identifier: MIT
#include "pipeline/slot_workers.h"

#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <new>
#include <utility>

namespace sluice {
namespace {

constexpr std::size_t kMostWorkers = 4;

}  // namespace

unsigned workers_of_lane(std::size_t cpus, std::size_t lanes) {
  // A lane's own work, and the kernel's for it (io-wq, interrupts), take two.
  constexpr std::size_t kCpusOfALane = 2;
  if (lanes == 0 || cpus <= lanes * kCpusOfALane) return 0;
  return static_cast<unsigned>(std::min(cpus / lanes - kCpusOfALane, kMostWorkers));
}

unsigned spare_workers(std::size_t lanes) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (::sched_getaffinity(0, sizeof cpus, &cpus) != 0) return 0;
  return workers_of_lane(static_cast<std::size_t>(CPU_COUNT(&cpus)), lanes);
}

SlotWorkers::SlotWorkers(std::uint32_t slots, LaneWorld& world)
    : world_(world), outcomes_(slots), queue_(slots) {}

Result<std::unique_ptr<SlotWorkers>> SlotWorkers::start(const std::string& name, unsigned threads,
                                                        std::uint32_t slots, LaneWorld& world) {
  assert(threads > 0);
  std::unique_ptr<SlotWorkers> workers(new SlotWorkers(slots, world));
  for (Outcome& outcome : workers->outcomes_) {
    outcome.done = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!outcome.done) return make_error(errno, "eventfd of a worker");
  }
  workers->threads_.reserve(threads);  // a thread that could not be stored would be joined, and never end
  for (unsigned i = 0; i < threads; ++i) {
    SLUICE_TRY_ASSIGN(LaneThread thread,
                      world.start_thread(name, [self = workers.get()] { return self->serve(); }));
    workers->threads_.push_back(std::move(thread));
  }
  return workers;
}

SlotWorkers::~SlotWorkers() {
  {
    const Lock lock(mutex_);
    ending_ = true;
  }
  world_.wake(wake_);
  threads_.clear();  // joins
}

void SlotWorkers::run(Slot& slot, SlotWork& work, Reactor& reactor) {
  reactor.poll_readable(slot.op(), outcomes_[slot.index].done.get(), kForEver);
  {
    const Lock lock(mutex_);
    assert(queued_ < queue_.size());
    queue_[(first_ + queued_++) % queue_.size()] = {&slot, &work};
  }
  world_.wake_one(wake_);
}

Result<void> SlotWorkers::take(const Slot& slot, std::int32_t completion) {
  Outcome& outcome = outcomes_[slot.index];
  eventfd_t count = 0;
  if (completion < 0) return make_error(-completion, "wait for a worker");
  if (::eventfd_read(outcome.done.get(), &count) != 0) return make_error(errno, "eventfd of a worker");
  return std::exchange(outcome.result, {});
}

Result<void> SlotWorkers::serve() {
  Lock lock(mutex_);
  for (;;) {
    while (!ending_ && queued_ == 0) world_.wait(lock, wake_);
    if (queued_ == 0) return {};
    const Job job = queue_[first_];
    first_ = (first_ + 1) % queue_.size();
    --queued_;
    lock.unlock();
    Outcome& outcome = outcomes_[job.slot->index];
    try {
      outcome.result = job.work->work(*job.slot);
    } catch (const std::bad_alloc&) {
      outcome.result = Error{ENOMEM, {}};
    }
    (void)::eventfd_write(outcome.done.get(), 1);
    lock.lock();
  }
}

}  // namespace sluice
