// SPDX-License-Identifier: MIT
// The threads of a lane for work on slots, in a simulation: hashing, and clones of extents. Linking this file
// puts them in place of slot_workers.cc's, and SimContents::clone in place of FICLONERANGE.
#include <linux/fs.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <utility>

#include "pipeline/slot_workers.h"
#include "sim/sim_contents.h"
#include "sim/sim_processes.h"
#include "support/seeds.h"

namespace sluice {

unsigned spare_workers(std::size_t /*lanes*/) {
  return 0;
}

SlotWorkers::SlotWorkers(std::uint32_t slots) : outcomes_(slots), queue_(slots) {}

Result<std::unique_ptr<SlotWorkers>> SlotWorkers::start(const std::string& name, unsigned threads,
                                                        std::uint32_t slots) {
  std::unique_ptr<SlotWorkers> workers(new SlotWorkers(slots));
  for (Outcome& outcome : workers->outcomes_) outcome.done.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  for (; threads > 0; --threads) {
    SLUICE_TRY_ASSIGN(LaneThread thread,
                      sim::contents().start_thread(name, [self = workers.get()] { return self->serve(); }));
    workers->threads_.push_back(std::move(thread));
  }
  return workers;
}

SlotWorkers::~SlotWorkers() {
  {
    const Lock lock(mutex_);
    ending_ = true;
    sim::contents().wake(wake_);
  }
  threads_.clear();
}

void SlotWorkers::run(Slot& slot, SlotWork& work, Reactor& reactor) {
  reactor.poll_readable(slot.op(), outcomes_[slot.index].done.get(), std::chrono::hours(24));
  const Lock lock(mutex_);
  queue_[(first_ + queued_++) % queue_.size()] = {&slot, &work};
  sim::contents().wake(wake_);
}

Result<void> SlotWorkers::take(const Slot& slot, std::int32_t completion) {
  Outcome& outcome = outcomes_[slot.index];
  eventfd_t count = 0;
  if (completion < 0 || ::eventfd_read(outcome.done.get(), &count) != 0)
    test::fail("a worker never came to an end");
  return std::exchange(outcome.result, {});
}

Result<void> SlotWorkers::serve() {
  Lock lock(mutex_);
  for (;;) {
    while (!ending_ && queued_ == 0) sim::contents().wait(lock, wake_, LaneWorld::kNever);
    if (queued_ == 0) return {};
    const Job job = queue_[first_];
    first_ = (first_ + 1) % queue_.size();
    --queued_;
    lock.unlock();
    Outcome& outcome = outcomes_[job.slot->index];
    outcome.result = job.work->work(*job.slot);
    (void)::eventfd_write(outcome.done.get(), 1);
    lock.lock();
  }
}

}  // namespace sluice

// Of which the engine asks for one thing.
extern "C" int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list rest;
  va_start(rest, request);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  if (request != FICLONERANGE || sluice::sim::SimProcesses::current() == nullptr)
    return static_cast<int>(::syscall(SYS_ioctl, fd, request, argument));
  const auto& range = *static_cast<const file_clone_range*>(argument);
  const int err = sluice::sim::contents().clone(static_cast<int>(range.src_fd), range.src_offset,
                                                range.src_length, fd, range.dest_offset);
  if (err == 0) return 0;
  errno = err;
  return -1;
}
