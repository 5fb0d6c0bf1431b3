// SPDX-License-Identifier: MIT
// A thread that replaces a DMA engine: it runs its jobs in order, and its CPU time does not count as the
// program's.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace sluice::bench {

class EngineThread {
 public:
  EngineThread();
  ~EngineThread();  // after the last job
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // Any thread. The job must not throw.
  void run(std::function<void()> job);
  // CPU time of the thread so far.
  double cpu_seconds() const;

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool ending_ = false;
  mutable std::thread thread_;  // for pthread_getcpuclockid; last: it uses the rest
};

}  // namespace sluice::bench
