// SPDX-License-Identifier: MIT
#include "plugin/host/thread_numbers.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <new>
#include <string>

namespace sluice::plugin {

namespace {

constexpr const char* kPlace = "sys/kernel/ns_last_pid";
constexpr const char* kMost = "sys/kernel/pid_max";
constexpr time_t kPatienceSeconds = 2;  // for an operation of two system calls

Result<UniqueFd> open_in(int proc, const char* name, int flags) {
  UniqueFd fd(::openat(proc, name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return make_error(errno, std::string("open /proc/") + name);
  return fd;
}

Result<pid_t> read_number(int fd, const char* name) {
  std::array<char, 16> text{};
  const ssize_t length = ::pread(fd, text.data(), text.size(), 0);
  if (length < 0) return make_error(errno, std::string("read /proc/") + name);
  pid_t number = 0;
  if (std::from_chars(text.data(), text.data() + length, number).ec != std::errc())
    return make_error(EBADMSG, std::string("/proc/") + name);
  return number;
}

bool write_number(int fd, pid_t number) {
  std::array<char, 16> text{};
  const char* end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return ::pwrite(fd, text.data(), static_cast<std::size_t>(end - text.data()), 0) >= 0;
}

}  // namespace

struct ThreadNumbers::Raised::Shared {
  pthread_mutex_t mutex;
  std::uint32_t raised;  // how many Raised there are
  pid_t before;          // the kernel's position before the first

  // Or unlocked: a task may have been killed with the mutex. A robust mutex would not help: CRIU clones tasks
  // without glibc, so the kernel does not know glibc's list of robust mutexes in them.
  class Locked {
   public:
    explicit Locked(Shared& shared) : shared_(shared) {
      // The realtime clock, because ThreadSanitizer does not know pthread_mutex_clocklock().
      timespec until{};
      (void)::clock_gettime(CLOCK_REALTIME, &until);
      until.tv_sec += kPatienceSeconds;
      error_ = ::pthread_mutex_timedlock(&shared_.mutex, &until);
    }
    ~Locked() {
      if (error_ == 0) (void)::pthread_mutex_unlock(&shared_.mutex);
    }
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;

    int error() const { return error_; }  // 0 or an errno: ETIMEDOUT

   private:
    Shared& shared_;
    int error_;
  };
};

Result<std::unique_ptr<ThreadNumbers>> ThreadNumbers::make() {
  void* memory =
      ::mmap(nullptr, sizeof(Raised::Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return make_error(errno, "memory that restored tasks share");
  std::unique_ptr<ThreadNumbers> made(new ThreadNumbers(new (memory) Raised::Shared{}));
  pthread_mutexattr_t shared;
  (void)::pthread_mutexattr_init(&shared);
  (void)::pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  (void)::pthread_mutex_init(&made->shared_->mutex, &shared);
  (void)::pthread_mutexattr_destroy(&shared);
  return made;
}

ThreadNumbers::~ThreadNumbers() {
  (void)::munmap(shared_, sizeof(Raised::Shared));
}

Result<ThreadNumbers::Raised> ThreadNumbers::raise(int proc) {
  SLUICE_TRY_ASSIGN(UniqueFd place, open_in(proc, kPlace, O_RDWR));
  SLUICE_TRY_ASSIGN(const UniqueFd most, open_in(proc, kMost, O_RDONLY));
  SLUICE_TRY_ASSIGN(const pid_t end, read_number(most.get(), kMost));
  const Raised::Shared::Locked locked(*shared_);
  if (locked.error() != 0)
    return make_error(locked.error(), "wait for a task that has raised them; it may have been killed");
  if (shared_->raised == 0) {
    SLUICE_TRY_ASSIGN(const pid_t before, read_number(place.get(), kPlace));
    shared_->before = std::max(before, 0);  // -1 if the only process got its number by set_tid
    if (!write_number(place.get(), end - end / 4))
      return make_error(errno, std::string("write to /proc/") + kPlace);
  }
  ++shared_->raised;
  return Raised(shared_, std::move(place));
}

ThreadNumbers::Raised::~Raised() {
  if (shared_ == nullptr) return;
  const Shared::Locked locked(*shared_);
  // unreached: every failure once
  if (locked.error() == 0 && --shared_->raised == 0) (void)write_number(place_.get(), shared_->before);
}

}  // namespace sluice::plugin
