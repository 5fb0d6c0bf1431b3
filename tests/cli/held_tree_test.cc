// SPDX-License-Identifier: MIT
// A process and its descendants, held for a moment: what is stopped, what is not, and that nobody loses
// anything by it.
#include "cli/predump/held_tree.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <functional>
#include <future>
#include <string>
#include <system_error>
#include <thread>

#include "base/unique_fd.h"
#include "proc/task_status.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A child that does something which is up to it, and lives until it is killed. It can send numbers.
class Child {
 public:
  explicit Child(const std::function<void(int to_test)>& body) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0)
      throw std::system_error(errno, std::generic_category(), "pipe2");
    from_child_.reset(ends[0]);
    const UniqueFd to_test(ends[1]);
    pid_ = ::fork();
    if (pid_ == 0) {
      (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
      body(to_test.get());
      for (;;) (void)::pause();
    }
  }
  ~Child() {
    (void)::kill(pid_, SIGKILL);
    (void)::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  bool has_spoken() const {
    pollfd waiting{from_child_.get(), POLLIN, 0};
    return ::poll(&waiting, 1, 0) == 1;
  }
  // The next number; -1 if it has ended, or none comes.
  int hear() const {
    constexpr int kMilliseconds = 60'000;
    pollfd waiting{from_child_.get(), POLLIN, 0};
    int number = -1;
    if (::poll(&waiting, 1, kMilliseconds) != 1) return -1;
    return ::read(from_child_.get(), &number, sizeof number) == sizeof number ? number : -1;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd from_child_;
};

void send(int to, int number) {
  if (::write(to, &number, sizeof number) != sizeof number) ::_exit(1);
}

// In a child: a child of it. Returns in the first.
pid_t fork_another(const std::function<void()>& body) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  body();
  for (;;) (void)::pause();
}

// In a child: a thread that sends its id and stays.
void start_thread(int to_test) {
  std::thread([to_test] {
    send(to_test, ::gettid());
    for (;;) (void)::pause();
  }).detach();
}

// In a child: from here on it waits in the kernel, where nothing but SIGKILL reaches it, for a child that
// neither ends nor executes.
void wait_in_vfork(int to_test) {
  alignas(16) static std::array<char, 64 * 1024> stack;
  static const int to = to_test;
  (void)::clone(
      [](void*) -> int {
        (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
        send(to, ::getppid());
        for (;;) (void)::pause();
      },
      stack.data() + stack.size(), CLONE_VFORK | SIGCHLD, nullptr);
}

pid_t tracer_of(pid_t task) {
  const auto status = proc::read_task_status("/proc/" + std::to_string(task));
  return status ? status->tracer : -1;
}

TEST(HeldTree, ATreeStopsWithAllItsThreadsAndRunsOn) {
  const Child child([](int to_test) {
    start_thread(to_test);
    send(to_test, fork_another([] {}));
  });
  const pid_t one = child.hear();
  const pid_t other = child.hear();  // the thread and the child, in any order
  ASSERT_GT(one, 0);
  ASSERT_GT(other, 0);
  HeldTree tree;
  const auto held = tree.hold(child.pid());
  ASSERT_TRUE(held.ok()) << held.error().what;
  EXPECT_EQ(tree.processes().size(), 2U);
  EXPECT_EQ(tree.processes().front(), child.pid());
  for (const pid_t task : {child.pid(), one, other}) {
    EXPECT_EQ(tracer_of(task), ::gettid());
    EXPECT_EQ(proc::read_task_status("/proc/" + std::to_string(task))->state, 't');
  }
  tree.release();
  EXPECT_TRUE(tree.processes().empty());
  for (const pid_t task : {child.pid(), one, other}) EXPECT_EQ(tracer_of(task), 0);
}

TEST(HeldTree, WhatHasEndedIsNotHeld) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT), 0);
  for (const bool reaped : {false, true}) {
    if (reaped) {
      ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
    }
    HeldTree tree;
    const auto held = tree.hold(pid);
    ASSERT_FALSE(held.ok()) << reaped;
    EXPECT_EQ(held.error().err, ESRCH) << reaped;
    EXPECT_TRUE(tree.processes().empty()) << reaped;
  }
}

TEST(HeldTree, ADescendantThatHasEndedKeepsNobodyFromBeingHeld) {
  const Child child([](int to_test) {
    const pid_t pid = fork_another([] { ::_exit(0); });
    siginfo_t ended{};
    (void)::waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT);
    send(to_test, pid);
  });
  ASSERT_GT(child.hear(), 0);
  HeldTree tree;
  const auto held = tree.hold(child.pid());
  EXPECT_TRUE(held.ok()) << held.error().what;
  EXPECT_THAT(tree.processes(), ElementsAre(child.pid()));
}

TEST(HeldTree, AThreadThatSomebodyTracesIsNamed) {
  const Child child(start_thread);
  const pid_t thread = child.hear();
  ASSERT_GT(thread, 0);
  std::promise<bool> traced;
  std::promise<void> seen;
  std::thread tracer([&] {
    traced.set_value(::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) == 0);
    seen.get_future().wait();
  });
  const bool is_traced = traced.get_future().get();
  HeldTree tree;
  const auto held = tree.hold(child.pid());
  tree.release();
  seen.set_value();
  tracer.join();
  ASSERT_TRUE(is_traced);
  ASSERT_FALSE(held.ok());
  EXPECT_EQ(held.error().err, EPERM);
  EXPECT_THAT(held.error().what, HasSubstr(std::to_string(thread)));
  EXPECT_EQ(tracer_of(child.pid()), 0);
}

TEST(HeldTree, AThreadThatDoesNotStopIsTold) {
  const Child child(wait_in_vfork);
  ASSERT_EQ(child.hear(), child.pid());
  HeldTree tree;
  const auto held = tree.hold(child.pid());
  ASSERT_FALSE(held.ok());
  EXPECT_EQ(held.error().err, ETIMEDOUT);
  EXPECT_THAT(held.error().what, HasSubstr(std::to_string(child.pid())));
}

// Killed between the wish that it stops and its stop.
TEST(HeldTree, AProcessThatIsKilledMeanwhileIsNotHeld) {
  const Child child(wait_in_vfork);
  ASSERT_EQ(child.hear(), child.pid());
  std::thread killer([&] {
    while (tracer_of(child.pid()) == 0) (void)::sched_yield();
    (void)::kill(child.pid(), SIGKILL);
  });
  HeldTree tree;
  const auto held = tree.hold(child.pid());
  killer.join();
  ASSERT_FALSE(held.ok());
  EXPECT_EQ(held.error().err, ESRCH);
  EXPECT_TRUE(tree.processes().empty());
}

// One that is about to be delivered when its thread is held comes after that.
std::atomic<int> signals_heard = 0;

TEST(HeldTree, SignalsThatComeMeanwhileAreNotLost) {
  constexpr int kSignals = 50'000;
  const Child child([](int to_test) {
    (void)::signal(SIGUSR1, [](int) { ++signals_heard; });
    send(to_test, 0);
    for (int i = 0; i < kSignals; ++i) (void)::raise(SIGUSR1);
    send(to_test, signals_heard);
  });
  ASSERT_EQ(child.hear(), 0);
  do {
    HeldTree tree;
    const auto held = tree.hold(child.pid());
    ASSERT_TRUE(held.ok()) << held.error().what;
  } while (!child.has_spoken());
  EXPECT_EQ(child.hear(), kSignals);
}

}  // namespace
}  // namespace sluice::cli
