// SPDX-License-Identifier: MIT
#include "engine/engine_thread.h"

#include <pthread.h>
#include <time.h>

#include <utility>

namespace sluice::bench {

EngineThread::EngineThread() : thread_([this] { serve(); }) {}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void EngineThread::run(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
}

double EngineThread::cpu_seconds() const {
  clockid_t clock{};
  timespec time{};
  if (::pthread_getcpuclockid(thread_.native_handle(), &clock) != 0) return 0;
  (void)::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

void EngineThread::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

}  // namespace sluice::bench
