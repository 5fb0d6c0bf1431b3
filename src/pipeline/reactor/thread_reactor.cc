// SPDX-License-Identifier: MIT
// Two fixed queues under one mutex: requests for the workers, completions for the lane. Polls go to another
// thread, which sleeps in ppoll over all of them and is woken by an eventfd when a new one comes.
#include "pipeline/reactor/thread_reactor.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <condition_variable>
#include <limits>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/own_thread.h"
#include "base/unique_fd.h"

namespace sluice {
namespace {

constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

// First in, first out, with a fixed capacity.
template <class T>
class FixedQueue {
 public:
  explicit FixedQueue(std::size_t capacity) : items_(capacity) {}
  bool empty() const { return count_ == 0; }
  void push(const T& item) {
    assert(count_ < items_.size());
    items_[(first_ + count_++) % items_.size()] = item;
  }
  T pop() {
    assert(count_ > 0);
    T item = items_[first_];
    first_ = (first_ + 1) % items_.size();
    --count_;
    return item;
  }

 private:
  std::vector<T> items_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

struct Request {
  enum class Kind : std::uint8_t { Read, Write, SyncData };

  Op* op = nullptr;
  int fd = -1;
  Kind kind = Kind::Read;
  std::byte* data = nullptr;  // only read by a write
  std::size_t bytes = 0;
  std::uint64_t offset = 0;

  ssize_t carry_out() const {
    const auto at = static_cast<off_t>(offset);
    switch (kind) {
      case Kind::Read:
        return offset == kStream ? ::read(fd, data, bytes) : ::pread(fd, data, bytes, at);
      case Kind::Write:
        return offset == kStream ? ::write(fd, data, bytes) : ::pwrite(fd, data, bytes, at);
      case Kind::SyncData:
        return ::fdatasync(fd);
    }
    __builtin_unreachable();
  }
};

struct PollRequest {
  Op* op = nullptr;
  int fd = -1;
  short events = 0;
  std::uint64_t deadline_ns = kNever;
};

// Blocks every signal while threads are made, because they inherit the mask.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    (void)::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { (void)::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

struct ThreadReactor::Impl {
  explicit Impl(unsigned entry_count)
      : entries(entry_count), requests(entry_count), polls(entry_count), done(entry_count) {
    active.reserve(entries);
    fds.reserve(entries + 1);
  }
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void work();
  void poll_loop();
  void ask(const Request& request);
  void complete(const Completion& completion);

  const unsigned entries;
  UniqueFd wake;  // eventfd: new polls, or stop

  Mutex mutex;
  std::condition_variable requests_changed;
  std::condition_variable done_changed;
  FixedQueue<Request> requests SLUICE_GUARDED_BY(mutex);
  FixedQueue<PollRequest> polls SLUICE_GUARDED_BY(mutex);
  FixedQueue<Completion> done SLUICE_GUARDED_BY(mutex);
  bool stop SLUICE_GUARDED_BY(mutex) = false;

  // The poll thread's, with room for all: a thread without memory could only end the process.
  std::vector<PollRequest> active;
  std::vector<pollfd> fds;

  std::vector<OwnThread> threads;
};

ThreadReactor::Impl::~Impl() {
  {
    const Lock lock(mutex);
    stop = true;
  }
  requests_changed.notify_all();
  if (wake) (void)::eventfd_write(wake.get(), 1);
  for (OwnThread& thread : threads) thread.join();
}

void ThreadReactor::Impl::ask(const Request& request) {
  {
    const Lock lock(mutex);
    requests.push(request);
  }
  requests_changed.notify_one();
}

void ThreadReactor::Impl::complete(const Completion& completion) {
  {
    const Lock lock(mutex);
    done.push(completion);
  }
  done_changed.notify_one();
}

void ThreadReactor::Impl::work() {
  for (;;) {
    Request request;
    {
      Lock lock(mutex);
      while (!stop && requests.empty()) lock.wait(requests_changed);
      if (requests.empty()) return;
      request = requests.pop();
    }
    // A transfer ends at MAX_RW_COUNT, below 2 GiB: the count fits.
    const ssize_t count = request.carry_out();
    complete(Completion{request.op, count < 0 ? -errno : static_cast<std::int32_t>(count)});
  }
}

void ThreadReactor::Impl::poll_loop() {
  for (;;) {
    {
      const Lock lock(mutex);
      if (stop) return;
      while (!polls.empty()) active.push_back(polls.pop());
    }
    std::uint64_t deadline_ns = kNever;
    fds.clear();
    for (const PollRequest& request : active) {
      fds.push_back(pollfd{request.fd, request.events, 0});
      deadline_ns = std::min(deadline_ns, request.deadline_ns);
    }
    fds.push_back(pollfd{wake.get(), POLLIN, 0});
    timespec timeout{};
    if (deadline_ns != kNever) {
      const std::uint64_t now_ns = monotonic_ns();
      const auto left_ns = static_cast<std::int64_t>(deadline_ns > now_ns ? deadline_ns - now_ns : 0);
      timeout.tv_sec = left_ns / kNsPerSecond;
      timeout.tv_nsec = left_ns % kNsPerSecond;
    }
    if (::ppoll(fds.data(), fds.size(), deadline_ns != kNever ? &timeout : nullptr, nullptr) < 0) {
      const int err = errno;
      if (err == EINTR) continue;
      for (const PollRequest& request : active) complete(Completion{request.op, -err});
      active.clear();
      continue;
    }
    if (fds.back().revents != 0) {
      eventfd_t value = 0;
      (void)::eventfd_read(wake.get(), &value);
    }
    const std::uint64_t now_ns = monotonic_ns();
    std::size_t kept = 0;
    for (std::size_t i = 0; i < active.size(); ++i) {
      if ((fds[i].revents & POLLNVAL) != 0) {
        complete(Completion{active[i].op, -EBADF});
      } else if (fds[i].revents != 0) {
        complete(Completion{active[i].op, 0});
      } else if (active[i].deadline_ns <= now_ns) {
        complete(Completion{active[i].op, -ETIME});
      } else {
        active[kept++] = active[i];
      }
    }
    active.resize(kept);
  }
}

Result<std::unique_ptr<ThreadReactor>> ThreadReactor::make(unsigned workers, unsigned entries) {
  assert(workers > 0 && entries > 0);
  auto impl = std::make_unique<Impl>(entries);
  impl->wake = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!impl->wake) return make_error(errno, "eventfd of the thread reactor");
  const SignalsBlocked signals_blocked;
  impl->threads.reserve(workers + 1);
  Impl* const shared = impl.get();
  for (unsigned i = 0; i <= workers; ++i) {
    auto thread = i == 0 ? OwnThread::start([shared] { shared->poll_loop(); })
                         : OwnThread::start([shared] { shared->work(); });
    if (!thread) return explain("threads of the thread reactor", thread.error());
    impl->threads.push_back(std::move(*thread));
  }
  return std::unique_ptr<ThreadReactor>(new ThreadReactor(std::move(impl)));
}

ThreadReactor::ThreadReactor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ThreadReactor::~ThreadReactor() {
  assert(in_flight_ == 0);
}

void ThreadReactor::read(Op& op, int fd, std::span<std::byte> buffer, std::uint64_t offset) {
  start(op);
  impl_->ask({&op, fd, Request::Kind::Read, buffer.data(), buffer.size(), offset});
}

void ThreadReactor::write(Op& op, int fd, std::span<const std::byte> buffer, std::uint64_t offset) {
  start(op);
  impl_->ask({&op, fd, Request::Kind::Write, const_cast<std::byte*>(buffer.data()), buffer.size(), offset});
}

void ThreadReactor::sync_data(Op& op, int fd) {
  start(op);
  impl_->ask({&op, fd, Request::Kind::SyncData, nullptr, 0, 0});
}

void ThreadReactor::poll_readable(Op& op, int fd, std::chrono::nanoseconds timeout) {
  poll(op, fd, POLLIN, timeout);
}

void ThreadReactor::poll_writable(Op& op, int fd, std::chrono::nanoseconds timeout) {
  poll(op, fd, POLLOUT, timeout);
}

void ThreadReactor::poll(Op& op, int fd, short events, std::chrono::nanoseconds timeout) {
  if (fd < 0) return post(op, -EBADF);  // poll(2) ignores it
  start(op);
  const std::uint64_t now_ns = monotonic_ns();
  const auto wait_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(timeout.count(), 0));
  {
    const Lock lock(impl_->mutex);
    impl_->polls.push(PollRequest{&op, fd, events, wait_ns < kNever - now_ns ? now_ns + wait_ns : kNever});
  }
  (void)::eventfd_write(impl_->wake.get(), 1);
}

void ThreadReactor::post(Op& op, std::int32_t result) {
  start(op);
  const Lock lock(impl_->mutex);
  impl_->done.push(Completion{&op, result});  // only the lane waits: nobody to notify
}

Result<std::size_t> ThreadReactor::wait(std::span<Completion> out) {
  assert(in_flight_ > 0 && !out.empty());
  std::size_t count = 0;
  {
    Lock lock(impl_->mutex);
    while (impl_->done.empty()) lock.wait(impl_->done_changed);
    while (count < out.size() && !impl_->done.empty()) out[count++] = impl_->done.pop();
  }
  for (std::size_t i = 0; i < count; ++i) out[i].op->in_flight = false;
  in_flight_ -= count;
  return count;
}

std::uint64_t ThreadReactor::now_ns() {
  return monotonic_ns();
}

void ThreadReactor::start(Op& op) {
  assert(!op.in_flight && in_flight_ < impl_->entries);
  op.in_flight = true;
  ++in_flight_;
}

}  // namespace sluice
