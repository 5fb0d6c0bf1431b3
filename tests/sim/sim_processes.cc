// SPDX-License-Identifier: MIT
#include "sim/sim_processes.h"
#include "support/seeds.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>

namespace sluice::sim {
namespace {

constexpr int kFirstFd = 1 << 24;  // beyond any real one
constexpr std::uint64_t kForEver = UINT64_MAX;
constexpr std::uint64_t kStall = 100 * kSecond;
constexpr std::uint64_t kMostSteps = 1'000'000;

struct Died {};

thread_local SimProcesses* simulation = nullptr;
thread_local void* own_thread = nullptr;

}  // namespace

// An end of a socket pair, or memory, which has no other end.
struct SimFile {
  struct Message {
    std::vector<std::byte> bytes;
    std::vector<std::shared_ptr<SimFile>> files;
  };

  ~SimFile() {
    if (const auto other = peer.lock()) {
      other->alone = true;
      other->reset = other->reset || !inbox.empty();
    }
  }
  std::uint64_t waiting_bytes() const {
    std::uint64_t bytes = 0;
    for (const Message& message : inbox) bytes += message.bytes.size();
    return bytes;
  }

  std::weak_ptr<SimFile> peer;
  std::deque<Message> inbox;
  bool alone = false;  // the other end is closed
  bool shut = false;   // both ways, by either end
  bool reset = false;  // the other end closed without having read all: told once
  std::uint64_t patience_ns = kForEver;
};

struct SimProcesses::Thread {
  int process = 0;
  std::function<void()> body;
  std::binary_semaphore turn{0};
  Ready ready;
  std::uint64_t deadline_ns = kForEver;
  std::optional<std::uint64_t> due_ns;  // known since `ready` was
  bool timed_out = false;
  bool killed = false;
  bool dying = false;
  bool ended = false;
  std::thread thread;
};

// Threads take turns: between two CPUs that takes ten times as long as on one.
SimProcesses::SimProcesses(test::Rng rng, const Chances& chances)
    : rng_(rng), chances_(chances), next_fd_(kFirstFd) {
  CPU_ZERO(&cpus_);
  (void)::sched_getaffinity(0, sizeof cpus_, &cpus_);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(::sched_getcpu(), &one);
  (void)::sched_setaffinity(0, sizeof one, &one);
}

SimProcesses::~SimProcesses() {
  for (const auto& thread : threads_) thread->thread.join();
  (void)::sched_setaffinity(0, sizeof cpus_, &cpus_);
}

SimProcesses* SimProcesses::current() {
  return simulation;
}

int SimProcesses::process() const {
  return static_cast<Thread*>(own_thread)->process;
}

std::uint64_t SimProcesses::some_time(std::uint64_t stall_ns) {
  if (chances_.stall_permille > 0 && rng_.between(0, 999) < chances_.stall_permille) return stall_ns;
  return rng_.between(0, chances_.pause_ns_max);
}

int SimProcesses::spawn(int process, std::function<void()> body) {
  auto made = std::make_unique<Thread>();
  Thread& thread = *made;
  thread.process = process;
  thread.body = std::move(body);
  thread.killed = dead(process);
  thread.ready = [due = now_ns_ + some_time(kStall)] { return std::optional(due); };
  thread.thread = std::thread([this, &thread] {
    simulation = this;
    own_thread = &thread;
    thread.turn.acquire();
    try {
      if (thread.killed) die();
      thread.body();
    } catch (const Died&) {
    }
    thread.body = nullptr;  // what it owns goes while calls are still this thread's
    thread.ended = true;
    turn_over_.release();
  });
  threads_.push_back(std::move(made));
  return static_cast<int>(threads_.size()) - 1;
}

bool SimProcesses::ended(int thread) const {
  return threads_[static_cast<std::size_t>(thread)]->ended;
}

void SimProcesses::run() {
  for (;;) {
    Thread* next = nullptr;
    std::uint64_t when = kForEver;
    bool all_ended = true;
    for (const auto& thread : threads_) {
      if (thread->ended) continue;
      all_ended = false;
      if (thread->killed && !thread->dying) thread->due_ns = now_ns_;
      if (!thread->due_ns) thread->due_ns = thread->ready();
      const std::uint64_t due = std::min(thread->due_ns.value_or(kForEver), thread->deadline_ns);
      if (due < when) next = thread.get(), when = due;
    }
    if (all_ended) return;
    if (next == nullptr) test::fail("everybody waits for ever");
    if (++steps_ > kMostSteps) test::fail("no end in sight");
    now_ns_ = std::max(now_ns_, when);
    next->timed_out = !next->due_ns || *next->due_ns > next->deadline_ns;
    if (steps_ >= chances_.death_step && !std::exchange(died_, true)) {
      for (const auto& thread : threads_)
        thread->killed = thread->killed || thread->process == chances_.victim;
    }
    next->turn.release();
    turn_over_.acquire();
  }
}

void SimProcesses::die() {
  static_cast<Thread*>(own_thread)->dying = true;
  throw Died();
}

// False: the deadline came first.
bool SimProcesses::block(const Ready& ready, std::uint64_t deadline_ns) {
  auto& self = *static_cast<Thread*>(own_thread);
  self.ready = ready;
  self.deadline_ns = deadline_ns;
  self.due_ns.reset();
  turn_over_.release();
  self.turn.acquire();
  if (self.killed && !self.dying) die();
  return !self.timed_out;
}

bool SimProcesses::block(const Ready& ready, const SimFile& file, bool waits) {
  if (!waits) return ready().has_value();
  return block(ready, file.patience_ns == kForEver ? kForEver : now_ns_ + file.patience_ns);
}

void SimProcesses::pause() {
  pause(kStall);
}

void SimProcesses::pause(std::uint64_t stall_ns) {
  pause_for(some_time(stall_ns));
}

void SimProcesses::pause_for(std::uint64_t ns) {
  const std::uint64_t due = now_ns_ + ns;
  (void)block([due] { return std::optional(due); }, kForEver);
}

void SimProcesses::wait_until(const std::function<bool()>& ready, std::uint64_t deadline_ns) {
  (void)block([&] { return ready() ? std::optional(now_ns_) : std::nullopt; }, deadline_ns);
}

void SimProcesses::wait_in_destructor(const std::function<bool()>& ready) {
  auto& self = *static_cast<Thread*>(own_thread);
  const bool before = std::exchange(self.dying, true);
  wait_until(ready);
  self.dying = before;
}

bool SimProcesses::dying() const {
  return static_cast<Thread*>(own_thread)->dying;
}

bool SimProcesses::call_fails() {
  return calls_++ == chances_.fail_call && chances_.fail_errno != 0;
}

int SimProcesses::add(std::shared_ptr<SimFile> file) {
  files_.emplace(next_fd_, std::move(file));
  return next_fd_++;
}

std::shared_ptr<SimFile> SimProcesses::find(int fd) const {
  const auto found = files_.find(fd);
  return found != files_.end() ? found->second : nullptr;
}

int SimProcesses::make_memory() {
  return add(std::make_shared<SimFile>());
}

int SimProcesses::duplicate(int fd) {
  const auto file = find(fd);
  return file ? add(file) : -1;
}

int SimProcesses::socketpair(int ends[2]) {
  if (dying()) return -EIO;
  if (call_fails()) return -chances_.fail_errno;
  auto one = std::make_shared<SimFile>();
  auto other = std::make_shared<SimFile>();
  one->peer = other;
  other->peer = one;
  ends[0] = add(std::move(one));
  ends[1] = add(std::move(other));
  return 0;
}

int SimProcesses::set_patience(int fd, std::uint64_t patience_ns) {
  const auto file = find(fd);
  if (!file || dying()) return -EBADF;
  if (call_fails()) return -chances_.fail_errno;
  file->patience_ns = patience_ns;
  return 0;
}

int SimProcesses::shutdown(int fd) {
  const auto file = find(fd);
  if (!file || dying()) return -EBADF;
  file->shut = true;
  if (const auto other = file->peer.lock()) other->shut = true;
  return 0;
}

long SimProcesses::send(int fd, std::vector<std::byte> bytes, const std::vector<int>& fds, bool waits) {
  if (dying()) return -EIO;
  pause();
  const auto file = find(fd);
  if (!file) return -EBADF;
  if (call_fails()) return -chances_.fail_errno;
  SimFile::Message message;
  for (const int each : fds) {
    auto beside = find(each);
    if (!beside) return -EBADF;
    message.files.push_back(std::move(beside));
  }
  const auto ready = [&]() -> std::optional<std::uint64_t> {
    const auto other = file->peer.lock();
    const bool room =
        !other || other->inbox.empty() || other->waiting_bytes() + bytes.size() <= chances_.socket_bytes;
    return room || file->shut || file->reset ? std::optional(now_ns_) : std::nullopt;
  };
  if (!block(ready, *file, waits)) return -EAGAIN;
  if (std::exchange(file->reset, false)) return -ECONNRESET;
  const auto other = file->peer.lock();
  if (!other || file->shut) return -EPIPE;
  const auto sent = static_cast<long>(bytes.size());
  message.bytes = std::move(bytes);
  other->inbox.push_back(std::move(message));
  return sent;
}

SimProcesses::Received SimProcesses::receive(int fd, bool waits) {
  Received received;
  received.result = -EIO;
  if (dying()) return received;
  pause();
  const auto file = find(fd);
  if (!file) return received;
  const bool hit = calls_ == chances_.fail_call;
  if (call_fails()) {
    received.result = -chances_.fail_errno;
    return received;
  }
  const auto ready = [&]() -> std::optional<std::uint64_t> {
    const bool any = !file->inbox.empty() || file->alone || file->shut;
    return any ? std::optional(now_ns_) : std::nullopt;
  };
  if (!block(ready, *file, waits)) {
    received.result = -EAGAIN;
    return received;
  }
  if (file->inbox.empty()) {
    received.result = std::exchange(file->reset, false) ? -ECONNRESET : 0;
    return received;
  }
  SimFile::Message message = std::move(file->inbox.front());
  file->inbox.pop_front();
  received.bytes = std::move(message.bytes);
  received.result = static_cast<long>(received.bytes.size());
  received.lost_fds = hit && !message.files.empty();
  if (received.lost_fds) message.files.clear();
  for (auto& each : message.files) received.fds.push_back(add(std::move(each)));
  return received;
}

int SimProcesses::poll(std::span<pollfd> files, std::optional<std::uint64_t> timeout_ns, bool fails) {
  if (dying()) return -EIO;
  pause();
  if (fails && call_fails()) return -chances_.fail_errno;
  const auto look = [&] {
    int found = 0;
    for (pollfd& each : files) {
      each.revents = 0;
      const auto file = find(each.fd);
      if (!file) continue;
      const bool ended = file->alone || file->shut;
      if (ended || !file->inbox.empty()) each.revents = POLLIN;
      if (ended) each.revents |= POLLHUP | POLLRDHUP;
      each.revents = static_cast<short>(each.revents & (each.events | POLLHUP));
      found += each.revents != 0 ? 1 : 0;
    }
    return found;
  };
  const auto ready = [&] { return look() > 0 ? std::optional(now_ns_) : std::nullopt; };
  (void)block(ready, timeout_ns ? now_ns_ + *timeout_ns : kForEver);
  return look();
}

bool SimProcesses::close(int fd) {
  return files_.erase(fd) == 1;
}

namespace {

long answer(long result) {
  if (result >= 0) return result;
  errno = static_cast<int>(-result);
  return -1;
}

// The calling thread's simulation, where the descriptor is of it.
SimProcesses* simulation_of(int fd) {
  return fd >= kFirstFd ? SimProcesses::current() : nullptr;
}

long receive_into(SimProcesses& processes, int fd, msghdr* message, int flags) {
  const SimProcesses::Received received = processes.receive(fd, (flags & MSG_DONTWAIT) == 0);
  if (received.result < 0) return answer(received.result);
  const iovec& part = *message->msg_iov;
  const std::size_t bytes = std::min(part.iov_len, received.bytes.size());
  std::copy_n(received.bytes.data(), bytes, static_cast<std::byte*>(part.iov_base));
  message->msg_flags = (bytes < received.bytes.size() ? MSG_TRUNC : 0) | (received.lost_fds ? MSG_CTRUNC : 0);
  const std::size_t fd_bytes = received.fds.size() * sizeof(int);
  if (received.fds.empty()) {
    message->msg_controllen = 0;
  } else {
    if (message->msg_controllen < CMSG_SPACE(fd_bytes)) test::fail("no room for descriptors");
    cmsghdr* const header = CMSG_FIRSTHDR(message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fd_bytes);
    std::memcpy(CMSG_DATA(header), received.fds.data(), fd_bytes);
    message->msg_controllen = CMSG_SPACE(fd_bytes);
  }
  return static_cast<long>(bytes);
}

}  // namespace
}  // namespace sluice::sim

// ---- the C library's calls

using sluice::sim::answer;
using sluice::sim::SimProcesses;
using sluice::sim::simulation_of;

extern "C" {

int socketpair(int domain, int type, int protocol, int* ends) noexcept {
  if (SimProcesses* const processes = SimProcesses::current())
    return static_cast<int>(answer(processes->socketpair(ends)));
  return static_cast<int>(::syscall(SYS_socketpair, domain, type, protocol, ends));
}

int setsockopt(int fd, int level, int name, const void* value, socklen_t bytes) noexcept {
  SimProcesses* const processes = simulation_of(fd);
  if (processes == nullptr) return static_cast<int>(::syscall(SYS_setsockopt, fd, level, name, value, bytes));
  timeval limit{};
  std::memcpy(&limit, value, sizeof limit);
  return static_cast<int>(
      answer(processes->set_patience(fd, static_cast<std::uint64_t>(limit.tv_sec) * sluice::sim::kSecond)));
}

// What an end is: asked of descriptors that came with a message.
int getsockopt(int fd, int level, int name, void* value, socklen_t* bytes) noexcept {
  SimProcesses* const processes = simulation_of(fd);
  if (processes == nullptr) return static_cast<int>(::syscall(SYS_getsockopt, fd, level, name, value, bytes));
  const int answer = name == SO_DOMAIN ? AF_UNIX : SOCK_SEQPACKET;
  std::memcpy(value, &answer, sizeof answer);
  return 0;
}

int shutdown(int fd, int how) noexcept {
  SimProcesses* const processes = simulation_of(fd);
  return static_cast<int>(processes != nullptr ? answer(processes->shutdown(fd))
                                               : ::syscall(SYS_shutdown, fd, how));
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  SimProcesses* const processes = simulation_of(fd);
  if (processes == nullptr) return ::syscall(SYS_sendmsg, fd, message, flags);
  const auto* const bytes = static_cast<const std::byte*>(message->msg_iov->iov_base);
  std::vector<int> fds;
  if (message->msg_controllen > 0) {
    const cmsghdr* const header = CMSG_FIRSTHDR(message);
    fds.resize((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(fds.data(), CMSG_DATA(header), fds.size() * sizeof(int));
  }
  return answer(
      processes->send(fd, {bytes, bytes + message->msg_iov->iov_len}, fds, (flags & MSG_DONTWAIT) == 0));
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  SimProcesses* const processes = simulation_of(fd);
  return processes != nullptr ? sluice::sim::receive_into(*processes, fd, message, flags)
                              : ::syscall(SYS_recvmsg, fd, message, flags);
}

ssize_t recv(int fd, void* buffer, std::size_t bytes, int flags) {
  SimProcesses* const processes = simulation_of(fd);
  if (processes == nullptr) return ::syscall(SYS_recvfrom, fd, buffer, bytes, flags, nullptr, nullptr);
  iovec part{buffer, bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return sluice::sim::receive_into(*processes, fd, &message, flags);
}

int poll(pollfd* files, nfds_t count, int milliseconds) {
  SimProcesses* const processes = SimProcesses::current();
  if (processes == nullptr) {
    const timespec patience{milliseconds / 1000, milliseconds % 1000 * 1'000'000L};
    return static_cast<int>(
        ::syscall(SYS_ppoll, files, count, milliseconds < 0 ? nullptr : &patience, nullptr, 0));
  }
  const std::optional<std::uint64_t> timeout =
      milliseconds < 0 ? std::nullopt : std::optional(static_cast<std::uint64_t>(milliseconds) * 1'000'000);
  return static_cast<int>(answer(processes->poll({files, count}, timeout, false)));
}

int ppoll(pollfd* files, nfds_t count, const timespec* patience, const sigset_t* mask) {
  SimProcesses* const processes = SimProcesses::current();
  if (processes == nullptr)
    return static_cast<int>(::syscall(SYS_ppoll, files, count, patience, mask, _NSIG / 8));
  std::optional<std::uint64_t> timeout;
  if (patience != nullptr) {
    timeout = static_cast<std::uint64_t>(patience->tv_sec) * sluice::sim::kSecond +
              static_cast<std::uint64_t>(patience->tv_nsec);
  }
  return static_cast<int>(answer(processes->poll({files, count}, timeout, true)));
}

int close(int fd) {
  SimProcesses* const processes = simulation_of(fd);
  if (processes == nullptr) return static_cast<int>(::syscall(SYS_close, fd));
  return processes->close(fd) ? 0 : static_cast<int>(answer(-EBADF));
}

}  // extern "C"
