// SPDX-License-Identifier: MIT
// Processes with threads and sockets in virtual time: seeded pauses, order and deaths. What runs is the real
// code; one thread runs at a time, until it waits, and the seed decides who is next. Linking sim_processes.cc
// puts the calls of such a thread on sockets of here: socketpair, setsockopt (patience), getsockopt, sendmsg,
// recvmsg, recv, poll, ppoll, shutdown, close. Every other thread's go to the kernel.
//
// The sockets are SOCK_SEQPACKET pairs of AF_UNIX as Linux has them: a message is whole and in order, with
// descriptors beside it, which keep what they mean open on the way; a full one makes the sender wait; whoever
// waits longer than its patience gets EAGAIN; an end that closes, dies or is shut down is end of file for the
// other behind all that was sent, or ECONNRESET where that end had not read everything. A call may be told to
// fail, and a message to lose its descriptors, as where the receiver has no room for them. No message is
// empty: whoever receives nothing is at the end.
//
// A process dies between two of its calls: its threads leave what they are in by an exception, and their
// calls fail from then on, but for close.
#pragma once

#include <poll.h>
#include <sched.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <semaphore>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "support/rng.h"

namespace sluice::sim {

inline constexpr std::uint64_t kSecond = 1'000'000'000;  // of virtual time, which is nanoseconds

struct SimFile;

// The kernel of one run.
class SimProcesses {
 public:
  struct Chances {
    std::uint64_t pause_ns_max = 1000;  // between two calls of a thread
    unsigned stall_permille = 0;        // of pauses: longer than anybody's patience
    std::uint64_t socket_bytes = 64 * 1024;
    // Dies when all threads together have gone on so often.
    int victim = -1;
    std::uint64_t death_step = UINT64_MAX;
    std::uint64_t fail_call =
        UINT64_MAX;      // the n-th call that can fail does: with `fail_errno`, or, where that is 0
    int fail_errno = 0;  // and descriptors came with a message, by losing these
  };
  SimProcesses(test::Rng rng, const Chances& chances);
  ~SimProcesses();
  SimProcesses(const SimProcesses&) = delete;
  SimProcesses& operator=(const SimProcesses&) = delete;

  // A thread of `process`. Before run(), or from a thread.
  int spawn(int process, std::function<void()> body);
  // Until all threads have ended. fail() where none can go on.
  void run();

  bool dead(int process) const { return chances_.victim == process && died_; }
  std::uint64_t steps() const { return steps_; }
  std::size_t open_files() const { return files_.size(); }

  // ---- from a thread
  static SimProcesses* current();  // null: the calling thread is none of a simulation
  int process() const;
  std::uint64_t now_ns() const { return now_ns_; }
  // Virtual time goes by, for the others to go on: as much as the seed says, or so much. A stall is longer
  // than anybody's patience, or as long as is said.
  void pause();
  void pause(std::uint64_t stall_ns);
  void pause_for(std::uint64_t ns);
  // Waits until `ready`, which changes by what other threads do, or for the deadline. Also while the process
  // dies.
  void wait_until(const std::function<bool()>& ready, std::uint64_t deadline_ns = UINT64_MAX);
  // The same for destructors, which no exception may leave: a thread that is killed meanwhile dies at its
  // next call.
  void wait_in_destructor(const std::function<bool()>& ready);
  bool ended(int thread) const;

  // Something that can be sent: memory.
  int make_memory();
  int duplicate(int fd);

  // The system calls: a result, or -errno.
  int socketpair(int ends[2]);
  int set_patience(int fd, std::uint64_t patience_ns);
  int shutdown(int fd);
  long send(int fd, std::vector<std::byte> bytes, const std::vector<int>& fds, bool waits);
  struct Received {
    long result = 0;  // bytes, 0 at the end
    std::vector<std::byte> bytes;
    std::vector<int> fds;
    bool lost_fds = false;
  };
  Received receive(int fd, bool waits);
  // Of POLLIN, POLLHUP and POLLRDHUP. `fails`: the call may be told to.
  int poll(std::span<pollfd> files, std::optional<std::uint64_t> timeout_ns, bool fails);
  bool close(int fd);  // false: none of ours

 private:
  struct Thread;
  // When the thread may go on: nothing, not before others did something.
  using Ready = std::function<std::optional<std::uint64_t>()>;
  bool block(const Ready& ready, std::uint64_t deadline_ns);
  // For as long as the file has patience, or, unless it `waits`, for nothing.
  bool block(const Ready& ready, const SimFile& file, bool waits);
  std::uint64_t some_time(std::uint64_t stall_ns);
  bool dying() const;
  bool call_fails();
  void die();
  int add(std::shared_ptr<SimFile> file);
  std::shared_ptr<SimFile> find(int fd) const;

  cpu_set_t cpus_;  // that the calling thread may use
  test::Rng rng_;
  Chances chances_;
  std::uint64_t now_ns_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t calls_ = 0;
  bool died_ = false;
  int next_fd_;
  std::map<int, std::shared_ptr<SimFile>> files_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::binary_semaphore turn_over_{0};
};

}  // namespace sluice::sim
