// SPDX-License-Identifier: MIT
#include "pipeline/lane.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <new>
#include <semaphore>
#include <system_error>
#include <utility>

namespace sluice {

struct LaneThread::Outcome {
  std::binary_semaphore apart{0};  // released when the thread has a file system context of its own
  Result<void> result;
};

namespace {

// Blocks every signal of the calling thread while it lives; threads made meanwhile inherit that.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

Result<void> run_body(const std::function<Result<void>()>& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Error{ENOMEM, "out of memory in a lane"};
  } catch (const std::exception& e) {
    return Error{EIO, std::string("a lane ended with an exception: ") + e.what()};
  }
}

}  // namespace

Result<LaneThread> LaneThread::start(const std::string& name, std::function<Result<void>()> body) {
  auto outcome = std::make_unique<Outcome>();
  const AllSignalsBlocked guard;
  try {
    std::thread thread([body = std::move(body), out = outcome.get(), name] {
      (void)pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
      if (unshare(CLONE_FS) != 0) out->result = make_error(errno, "unshare(CLONE_FS) for a lane thread");
      const bool apart = out->result.ok();
      out->apart.release();
      if (apart) out->result = run_body(body);
    });
    outcome->apart.acquire();
    return LaneThread(std::move(thread), std::move(outcome));
  } catch (const std::system_error& e) {
    return make_error(
        EAGAIN, "cannot make a lane thread (" + std::string(e.what()) + "); raise the limit of processes");
  }
}

LaneThread::LaneThread(std::thread thread, std::unique_ptr<Outcome> outcome)
    : thread_(std::move(thread)), outcome_(std::move(outcome)) {}
LaneThread::LaneThread(LaneThread&&) noexcept = default;

LaneThread::~LaneThread() {
  if (thread_.joinable()) thread_.join();
}

Result<void> LaneThread::join() {
  thread_.join();
  return std::move(outcome_->result);
}

}  // namespace sluice
