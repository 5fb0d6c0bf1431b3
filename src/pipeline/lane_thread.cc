// SPDX-License-Identifier: MIT
#include "pipeline/lane_thread.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <semaphore>
#include <string_view>
#include <thread>
#include <utility>

#include "base/format.h"
#include "base/own_thread.h"
#include "base/unique_fd.h"

namespace sluice {

namespace {

using Comm = std::array<char, 16>;  // a thread's name
constexpr std::string_view kWorkerPrefix = "iou-wrk-";
constexpr auto kWorkerEndPoll = std::chrono::microseconds(100);
constexpr int kWorkerEndPolls = 10'000;

// Blocks every signal of the calling thread during its life; threads made meanwhile inherit that.
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

// A task of this process, in /proc.
struct Task {
  int directory;  // of all of them
  const char* number;

  // As much of a file of the task as fits, with a terminating zero.
  template <std::size_t size>
  std::array<char, size> read(const char* file) const {
    const std::string path = std::string(number) + "/" + file;
    std::array<char, size> text{};
    const UniqueFd fd(openat(directory, path.data(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (fd) (void)!::read(fd.get(), text.data(), text.size() - 1);
    return text;
  }

  // As numbered in the calling process, which /proc need not share; 0: unavailable.
  pid_t pid() const {
    const std::array<char, 4096> status = read<4096>("status");
    const char* const line = std::strstr(status.data(), "\nNSpid:");
    if (line == nullptr) return 0;
    const char* const end = strchrnul(line + 1, '\n');
    const void* const last = memrchr(line, '\t', static_cast<std::size_t>(end - line));
    return last != nullptr ? static_cast<pid_t>(std::strtol(static_cast<const char*>(last), nullptr, 10)) : 0;
  }
};

// Whether `is_it`, called with a Task and its name, is true for an io-wq worker of this process.
template <class IsIt>
bool any_io_worker(const IsIt& is_it) {
  const std::unique_ptr<DIR, CloseDirectory> tasks(opendir("/proc/self/task"));
  if (!tasks) return false;
  while (const dirent* const entry = readdir(tasks.get())) {
    const Task task{dirfd(tasks.get()), entry->d_name};
    Comm name = task.read<sizeof(Comm)>("comm");
    *strchrnul(name.data(), '\n') = '\0';
    if (std::string_view(name.data()).starts_with(kWorkerPrefix) && is_it(task, name)) return true;
  }
  return false;
}

// The name of a thread's io-wq workers. It has the thread's number in the initial pid namespace, which is not
// visible in another. So it is read from a worker: only workers share the thread's file system context.
Comm io_worker_name(pid_t thread) {
  Comm found{};
  (void)std::snprintf(found.data(), found.size(), "%s%d", kWorkerPrefix.data(), thread);
  (void)any_io_worker([&](const Task& task, const Comm& name) {
    const bool its = ::syscall(SYS_kcmp, thread, task.pid(), KCMP_FS, 0UL, 0UL) == 0;
    if (its) found = name;
    return its;
  });
  return found;
}

// Whether the process still lists an io-wq worker of that name.
bool has_io_workers(const Comm& worker) {
  return any_io_worker([&worker](const Task&, const Comm& name) { return name == worker; });
}

Result<void> run_body(const std::function<Result<void>()>& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Error{ENOMEM, "out of memory"};  // a text that needs no allocation
  } catch (const std::exception& e) {
    return Error{EIO, formatted("a lane ended with an exception, {}; report this as a bug of sluice [SL-C08]",
                                e.what())};
  }
}

class OwnLaneThread final : public LaneThread::Running {
 public:
  ~OwnLaneThread() override {
    if (thread_ && thread_->joinable()) (void)join(LaneThread::Ring::Had);
  }

  // Returns when `body` runs, or never will.
  Result<void> start(const std::string& name, std::function<Result<void>()> body) {
    const AllSignalsBlocked guard;
    SLUICE_TRY_ASSIGN(OwnThread thread, OwnThread::start([this, body = std::move(body), name] {
                        (void)pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
                        if (unshare(CLONE_FS) != 0)
                          apart_ = make_error(errno, "unshare(CLONE_FS) for a lane thread");
                        tid_ = gettid();
                        const bool apart = apart_.ok();
                        tried_.release();
                        if (!apart) return;
                        result_ = run_body(body);
                        ended_.release();
                        may_end_.acquire();
                      }));
    thread_.emplace(std::move(thread));
    tried_.acquire();
    if (!apart_) thread_->join();
    return apart_;
  }

  // The kernel ends a thread's io-wq workers before the thread itself. But one may be listed for an instant
  // after the join, long enough to disturb a host that counts its threads. The workers' name is read while
  // the thread still exists.
  Result<void> join(LaneThread::Ring ring) override {
    ended_.acquire();
    const bool had_ring = ring == LaneThread::Ring::Had;
    const Comm worker = had_ring ? io_worker_name(tid_) : Comm{};
    may_end_.release();
    thread_->join();
    for (int i = 0; had_ring && i < kWorkerEndPolls && has_io_workers(worker); ++i)
      std::this_thread::sleep_for(kWorkerEndPoll);
    return std::move(result_);
  }

 private:
  std::optional<OwnThread> thread_;
  pid_t tid_ = 0;
  Result<void> apart_;              // whether the thread has its own file system context
  std::binary_semaphore tried_{0};  // released when `apart_` is known
  Result<void> result_;
  std::binary_semaphore ended_{0};    // released when `result_` is known
  std::binary_semaphore may_end_{0};  // the thread stays until then
};

}  // namespace

Result<LaneThread> LaneThread::start(const std::string& name, std::function<Result<void>()> body) {
  auto thread = std::make_unique<OwnLaneThread>();
  SLUICE_TRY(thread->start(name, std::move(body)));
  return LaneThread(std::move(thread));
}

}  // namespace sluice
