// SPDX-License-Identifier: MIT
// What changes between the look at a process and the moment from which nothing can change any more without
// being seen: its descriptors. Run by vamdgpu-run; skipped where there is no /dev/kfd.
#include "kfd/unpause.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kfd/device.h"
#include "kfd/ioctl_call.h"
#include "kfd/uapi.h"
#include "proc/processes.h"

namespace {

// Called once, just before the next PTRACE_SEIZE of this process.
std::function<void()> before_seize;
// Called once, just before the next call of a device.
std::function<void()> before_ioctl;
// Devices that were asked for something.
std::vector<dev_t> asked;

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

// In front of the virtual machine's.
extern "C" long interposed_ptrace(int request, ...) __asm__("ptrace");
extern "C" int interposed_ioctl(int fd, unsigned long request, ...) __asm__("ioctl");

long interposed_ptrace(int request, ...) {
  va_list list;
  va_start(list, request);
  const auto pid = va_arg(list, pid_t);
  void* const address = va_arg(list, void*);
  void* const data = va_arg(list, void*);
  va_end(list);
  if (request == PTRACE_SEIZE && before_seize) std::exchange(before_seize, nullptr)();
  return next<long(int, pid_t, void*, void*)>("ptrace")(request, pid, address, data);
}

int interposed_ioctl(int fd, unsigned long request, ...) {
  va_list list;
  va_start(list, request);
  void* const argument = va_arg(list, void*);
  va_end(list);
  struct stat st {};
  if (::fstat(fd, &st) == 0 && S_ISCHR(st.st_mode)) asked.push_back(st.st_rdev);
  if (before_ioctl) std::exchange(before_ioctl, nullptr)();
  return next<int(int, unsigned long, void*)>("ioctl")(fd, request, argument);
}

namespace sluice::kfd {
namespace {

// A process that has /dev/kfd, and at a word has /dev/null in its place.
class Changing {
 public:
  // `opens_again`: at another number, before.
  explicit Changing(bool opens_again) {
    std::array<int, 2> to{}, from{};
    EXPECT_EQ(::pipe2(to.data(), O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(from.data(), O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const int first = ::open(kDevicePath, O_RDWR | O_CLOEXEC);
      (void)!::write(from[1], &first, sizeof first);
      char word = 0;
      (void)!::read(to[0], &word, 1);
      const int second = opens_again ? ::open(kDevicePath, O_RDWR | O_CLOEXEC) : -1;
      const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
      const bool changed = ::dup3(null, first, O_CLOEXEC) == first;
      const int now = changed ? second : first;
      (void)!::write(from[1], &now, sizeof now);
      for (;;) ::pause();
    }
    ::close(to[0]);
    ::close(from[1]);
    to_ = UniqueFd(to[1]);
    from_ = UniqueFd(from[0]);
    first_ = hear();
  }
  ~Changing() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Changing(const Changing&) = delete;
  Changing& operator=(const Changing&) = delete;

  pid_t pid() const { return pid_; }
  int first() const { return first_; }
  // Returns when it has done so. The descriptor of /dev/kfd that it has then, or -1.
  int change() {
    EXPECT_EQ(::write(to_.get(), "!", 1), 1);
    return hear();
  }

  // As a dump does that is killed over it.
  void leave_paused() const {
    const pid_t dump = ::fork();
    if (dump == 0) {
      CriuArgs args{};
      args.op = CriuOp::ProcessInfo;
      const bool traced = ::ptrace(PTRACE_SEIZE, pid_, nullptr, nullptr) == 0;
      const auto file = proc::take_descriptor({pid_, first_});
      ::_exit(traced && file && call_ioctl(system_ioctl, file->get(), kIocCriuOp, &args) == 0 ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(dump, &status, 0), dump);
    EXPECT_EQ(status, 0);
  }

 private:
  int hear() const {
    int number = -1;
    EXPECT_EQ(::read(from_.get(), &number, sizeof number), static_cast<ssize_t>(sizeof number));
    return number;
  }

  pid_t pid_ = -1;
  int first_ = -1;
  UniqueFd to_, from_;
};

// A process that has the /dev/kfd of another one, which opened it, and is our child all the same.
class Heir {
 public:
  Heir() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    owner_ = ::fork();
    if (owner_ == 0) {
      const bool opened = ::open(kDevicePath, O_RDWR | O_CLOEXEC) >= 0;
      const auto heir = static_cast<pid_t>(
          ::syscall(SYS_clone, CLONE_PARENT | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
      if (heir != 0 && opened) (void)!::write(ends[1], &heir, sizeof heir);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    EXPECT_EQ(::read(ends[0], &pid_, sizeof pid_), static_cast<ssize_t>(sizeof pid_));
    ::close(ends[0]);
  }
  ~Heir() {
    end();
    ::kill(owner_, SIGKILL);
    ::waitpid(owner_, nullptr, 0);
  }
  Heir(const Heir&) = delete;
  Heir& operator=(const Heir&) = delete;

  pid_t pid() const { return pid_; }
  void end() {
    const pid_t pid = std::exchange(pid_, -1);
    if (pid <= 0) return;
    ::kill(pid, SIGKILL);
    EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
  }

 private:
  pid_t owner_ = -1;
  pid_t pid_ = -1;
};

class UnpauseOnMachine : public ::testing::Test {
 protected:
  void SetUp() override {
    struct stat st {};
    if (::stat(kDevicePath, &st) != 0) GTEST_SKIP() << "no " << kDevicePath << " here";
    asked.clear();
  }
};

TEST_F(UnpauseOnMachine, descriptors_that_change_before_it_is_attached_to_are_looked_at_again) {
  Changing process(true);
  process.leave_paused();
  int second = -1;
  before_seize = [&] { second = process.change(); };
  const UnpauseReport report = unpause_left_paused(process.pid());
  EXPECT_EQ(report.status, UnpauseStatus::Unpaused) << report.what;
  EXPECT_NE(second, process.first());
  EXPECT_EQ(report.descriptors, std::vector<int>{second});
  EXPECT_EQ(asked, std::vector<dev_t>{kfd_device_number().value()}) << "not /dev/kfd alone";
}

// As where its number has become another process'.
TEST_F(UnpauseOnMachine, one_that_has_no_kfd_any_more_when_it_is_attached_to_is_left_alone) {
  Changing process(false);
  before_seize = [&] { EXPECT_EQ(process.change(), -1); };
  const UnpauseReport report = unpause_left_paused(process.pid());
  EXPECT_EQ(report.status, UnpauseStatus::NotGpuProcess) << report.what;
  EXPECT_TRUE(report.descriptors.empty());
  EXPECT_TRUE(asked.empty());
}

TEST_F(UnpauseOnMachine, who_has_inherited_the_file_is_told_whose_it_is) {
  const Heir heir;
  const UnpauseReport report = unpause_left_paused(heir.pid());
  EXPECT_EQ(report.status, UnpauseStatus::InheritedFiles) << report.what;
  EXPECT_NE(report.remedy.find(std::to_string(::getpid())), std::string::npos) << report.remedy;
}

TEST_F(UnpauseOnMachine, an_heir_that_ends_meanwhile_has_no_parent) {
  Heir heir;
  before_ioctl = [&] { heir.end(); };
  const UnpauseReport report = unpause_left_paused(heir.pid());
  EXPECT_EQ(report.status, UnpauseStatus::InheritedFiles) << report.what;
  EXPECT_EQ(report.remedy.find(std::to_string(::getpid())), std::string::npos) << report.remedy;
}

TEST_F(UnpauseOnMachine, one_that_ends_before_it_is_attached_to_is_gone) {
  Heir heir;
  before_seize = [&] { heir.end(); };
  const UnpauseReport report = unpause_left_paused(heir.pid());
  EXPECT_EQ(report.status, UnpauseStatus::NoSuchProcess) << report.what;
  EXPECT_TRUE(asked.empty());
}

TEST_F(UnpauseOnMachine, one_that_has_ended_and_is_not_waited_for_is_left_alone) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(unpause_left_paused(pid).status, UnpauseStatus::Ended);
  EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
  EXPECT_EQ(unpause_left_paused(pid).status, UnpauseStatus::NoSuchProcess);
}

TEST_F(UnpauseOnMachine, one_that_another_attaches_to_first_is_left_to_that_one) {
  const Heir heir;
  pid_t tracer = -1;
  before_seize = [&] {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    tracer = ::fork();
    if (tracer == 0) {
      const char traced = ::ptrace(PTRACE_SEIZE, heir.pid(), nullptr, nullptr) == 0 ? 1 : 0;
      (void)!::write(ends[1], &traced, 1);
      for (;;) ::pause();
    }
    char traced = 0;
    EXPECT_EQ(::read(ends[0], &traced, 1), 1);
    EXPECT_EQ(traced, 1);
    ::close(ends[0]);
    ::close(ends[1]);
  };
  const UnpauseReport report = unpause_left_paused(heir.pid());
  EXPECT_EQ(report.status, UnpauseStatus::Traced) << report.what;
  EXPECT_TRUE(asked.empty());
  ASSERT_GT(tracer, 0);
  ::kill(tracer, SIGKILL);
  EXPECT_EQ(::waitpid(tracer, nullptr, 0), tracer);
}

}  // namespace
}  // namespace sluice::kfd
