// SPDX-License-Identifier: MIT
#include "pipeline/lane.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <new>
#include <semaphore>
#include <system_error>
#include <utility>

#include "pipeline/unique_fd.h"

namespace sluice {

struct LaneThread::Outcome {
  pid_t tid = 0;
  Result<void> apart;              // whether the thread has a file system context of its own
  std::binary_semaphore tried{0};  // released when `apart` is known
  Result<void> result;
};

namespace {

constexpr std::size_t kCommLength = 15;  // of a thread's name
constexpr auto kWorkerEndPoll = std::chrono::microseconds(100);
constexpr int kWorkerEndPolls = 10'000;

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

struct CloseDirectory {
  void operator()(DIR* directory) const { (void)closedir(directory); }
};

// Whether the process still lists an io-wq worker of the thread `tid`.
bool has_io_workers(pid_t tid) {
  const std::string worker = ("iou-wrk-" + std::to_string(tid)).substr(0, kCommLength);
  const std::unique_ptr<DIR, CloseDirectory> tasks(opendir("/proc/self/task"));
  if (!tasks) return false;
  while (const dirent* task = readdir(tasks.get())) {
    const std::string path = std::string(task->d_name) + "/comm";
    const UniqueFd comm(openat(dirfd(tasks.get()), path.c_str(), O_RDONLY | O_CLOEXEC));
    std::array<char, kCommLength + 1> name{};
    if (comm && read(comm.get(), name.data(), kCommLength) > 0 &&
        worker == std::string(name.data()).substr(0, worker.size())) {
      return true;
    }
  }
  return false;
}

Result<void> run_body(const std::function<Result<void>()>& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Error{ENOMEM, "out of memory"};  // words that need none
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
      if (unshare(CLONE_FS) != 0) out->apart = make_error(errno, "unshare(CLONE_FS) for a lane thread");
      out->tid = gettid();
      const bool apart = out->apart.ok();
      out->tried.release();
      if (apart) out->result = run_body(body);
    });
    outcome->tried.acquire();
    if (!outcome->apart) {
      thread.join();
      return outcome->apart.error();
    }
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
  if (thread_.joinable()) (void)join();
}

// The kernel ends a thread's io-wq workers before the thread itself, but one may be listed for an instant
// after the join: long enough for a host that counts its threads.
Result<void> LaneThread::join(Ring ring) {
  thread_.join();
  for (int i = 0; ring == Ring::Had && i < kWorkerEndPolls && has_io_workers(outcome_->tid); ++i)
    std::this_thread::sleep_for(kWorkerEndPoll);
  return std::move(outcome_->result);
}

}  // namespace sluice
