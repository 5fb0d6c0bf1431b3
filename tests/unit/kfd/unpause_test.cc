// SPDX-License-Identifier: MIT
// What changes between the look at a process and the moment from which nothing can change any more without
// being seen: its descriptors. Run by vamdgpu-run; skipped where there is no /dev/kfd.
#include "kfd/unpause.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <functional>
#include <utility>
#include <vector>

#include "kfd/device.h"
#include "kfd/ioctl_call.h"
#include "kfd/uapi.h"
#include "proc/processes.h"

namespace {

// Called once, just before the next PTRACE_SEIZE of this process.
std::function<void()> before_seize;
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

}  // namespace
}  // namespace sluice::kfd
