// SPDX-License-Identifier: MIT
// Shared state: mapping, the lock, waiting, and the names of the machine's files. See shared.h.
#include "shared.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "raw.h"

namespace vamdgpu {
namespace {

constexpr std::uint32_t kWaiters = 0x80000000;
constexpr std::uint32_t kHolder = 0x7fffffff;
constexpr std::int64_t kTagSecondsBase = 0x564d0000;  // modification time of tagged files: this plus the kind
constexpr mode_t kFenceMode = 01600;                  // a mode that no other FIFO has

long futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, word, operation, value, timeout, nullptr, FUTEX_BITSET_MATCH_ANY);
}

std::uint32_t thread_id() {
  return static_cast<std::uint32_t>(::syscall(SYS_gettid));
}

// State letter of a thread or process ('R', 'S', 'Z' ...), 0 when there is none, and its start time.
char process_state(std::uint32_t pid, std::uint64_t* start_time) {
  char path[32], text[1024];
  std::snprintf(path, sizeof(path), "/proc/%u/stat", pid);
  const int fd = raw::openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return 0;
  const ssize_t length = raw::read(fd, text, sizeof(text) - 1);
  raw::close(fd);
  if (length <= 0) return 0;
  text[length] = 0;
  const char* after = std::strrchr(text, ')');
  if (after == nullptr || after[1] == 0) return 0;
  const char state = after[2];
  const char* field = after + 2;
  for (int skip = 0; skip < 19 && field != nullptr; ++skip) {  // field 3 is the state, 22 the start time
    field = std::strchr(field, ' ');
    if (field != nullptr) ++field;
  }
  std::uint64_t value = 0;
  while (field != nullptr && *field >= '0' && *field <= '9')
    value = value * 10 + static_cast<std::uint64_t>(*field++ - '0');
  if (start_time != nullptr) *start_time = value;
  return state;
}

bool thread_is_dead(std::uint32_t tid) {
  const char state = process_state(tid, nullptr);
  return state == 0 || state == 'Z' || state == 'X';
}

// Somebody stopped a thread behind our back (SIGSTOP, a debugger): say why everything stands still.
void report_stopped_holder(std::uint32_t tid) {
  const char state = tid != 0 ? process_state(tid, nullptr) : 0;
  if (state != 't' && state != 'T') return;
  char text[96];
  const int length =
      std::snprintf(text, sizeof(text), "vamdgpu: thread %u was stopped inside a driver call\n", tid);
  if (length > 0) (void)!::syscall(SYS_write, 2, text, static_cast<std::size_t>(length));
}

}  // namespace

char thread_state(int tid) {
  return process_state(static_cast<std::uint32_t>(tid), nullptr);
}

std::uint64_t process_start_time(int pid) {
  std::uint64_t start = 0;
  const char state = process_state(static_cast<std::uint32_t>(pid), &start);
  return state == 0 || state == 'Z' || state == 'X' ? 0 : start;
}

void SharedLock::lock() {
  const std::uint32_t self = thread_id();
  int timeouts = 0;
  std::uint32_t expected = 0;
  if (word_.compare_exchange_strong(expected, self, std::memory_order_acquire)) return;
  for (;;) {
    std::uint32_t seen = word_.load(std::memory_order_relaxed);
    if ((seen & kHolder) == 0) {
      // Whoever waited may not be alone: keep the mark.
      if (word_.compare_exchange_weak(seen, self | kWaiters, std::memory_order_acquire)) return;
      continue;
    }
    if ((seen & kWaiters) == 0 && !word_.compare_exchange_weak(seen, seen | kWaiters)) continue;
    const timespec limit = {0, 100'000'000};
    const long slept = ::syscall(SYS_futex, &word_, FUTEX_WAIT, seen | kWaiters, &limit, nullptr, 0);
    if (slept != 0 && errno == ETIMEDOUT) {
      seen = word_.load(std::memory_order_relaxed);
      if (++timeouts == 50) report_stopped_holder(seen & kHolder);
      if ((seen & kHolder) != 0 && thread_is_dead(seen & kHolder) &&
          word_.compare_exchange_strong(seen, self | kWaiters, std::memory_order_acquire))
        return;
    }
  }
}

void SharedLock::unlock() {
  const std::uint32_t before = word_.exchange(0, std::memory_order_release);
  if ((before & kWaiters) != 0) futex(&word_, FUTEX_WAKE, 1, nullptr);
}

vam_limits machine_limits() {
  vam_limits limits{};
  limits.capacity[VAM_T_IDR_NODE] = 1 << 17;
  limits.capacity[VAM_T_RANGE] = 1 << 21;
  limits.capacity[VAM_T_BO] = 1 << 19;
  limits.capacity[VAM_T_HANDLE] = 1 << 20;
  limits.capacity[VAM_T_MEM] = 1 << 19;
  limits.capacity[VAM_T_FILE] = 4096;
  limits.capacity[VAM_T_PROCESS] = 256;
  limits.capacity[VAM_T_QUEUE] = 16384;
  limits.capacity[VAM_T_EVENT] = 1 << 18;
  limits.capacity[VAM_T_SVM] = 1 << 16;
  limits.capacity[VAM_T_CTX] = 8192;
  limits.capacity[VAM_T_BO_LIST] = 1 << 16;
  limits.capacity[VAM_T_CHUNK] = 1 << 17;
  limits.capacity[VAM_T_FENCE] = 1 << 19;
  limits.capacity[VAM_T_JOB] = 1 << 15;
  limits.capacity[VAM_T_SYNCOBJ] = 1 << 17;
  limits.capacity[VAM_T_EXPORT] = 1 << 16;
  limits.capacity[VAM_T_METADATA] = 1 << 16;
  limits.capacity[VAM_T_IPC] = 1 << 16;
  return limits;
}

Shared* map_shared(const char* directory, std::uint64_t* device) {
  const StatePath path(directory, "state", UINT64_MAX);
  const int fd = raw::openat(AT_FDCWD, path.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) return nullptr;
  struct stat status;
  void* memory = MAP_FAILED;
  if (raw::fstat(fd, &status) == 0 && status.st_size > static_cast<off_t>(sizeof(Shared))) {
    memory = raw::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_NORESERVE, fd, 0);
  } else {
    errno = EINVAL;
  }
  const int error = errno;
  raw::close(fd);
  errno = error;
  if (memory == MAP_FAILED) return nullptr;
  auto* shared = static_cast<Shared*>(memory);
  if (shared->magic != Shared::layout()) {
    errno = EINVAL;
    return nullptr;
  }
  *device = status.st_dev;
  return shared;
}

void announce_change(Shared* shared) {
  shared->change.fetch_add(1);
  if (shared->waiters.load() != 0) futex(&shared->change, FUTEX_WAKE, INT32_MAX, nullptr);
}

int wait_for_change(Shared* shared, std::uint32_t seen, std::uint64_t deadline_ns) {
  // Waiters look up once a second whatever is announced: whoever was to wake them may have been killed.
  const std::uint64_t soon = monotonic_ns() + 1'000'000'000;
  const std::uint64_t until = deadline_ns < soon ? deadline_ns : soon;
  const timespec limit = {static_cast<time_t>(until / 1'000'000'000),
                          static_cast<long>(until % 1'000'000'000)};
  shared->waiters.fetch_add(1);
  const long result = futex(&shared->change, FUTEX_WAIT_BITSET, seen, &limit);
  const int error = result == 0 ? 0 : errno;
  shared->waiters.fetch_sub(1);
  if (error == EINTR) return EINTR;
  if (error == ETIMEDOUT && deadline_ns <= soon) return ETIMEDOUT;
  return 0;
}

std::uint64_t monotonic_ns() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

StatePath::StatePath(const char* directory, const char* what, std::uint64_t number) {
  if (number == UINT64_MAX)
    std::snprintf(text_, sizeof(text_), "%s/%s", directory, what);
  else
    std::snprintf(text_, sizeof(text_), "%s/%s%llu", directory, what,
                  static_cast<unsigned long long>(number));
}

StatePath pool_path(const char* directory, enum vam_pool pool, std::uint32_t gpu) {
  return StatePath(directory, pool == VAM_POOL_VRAM ? "vram-" : "gtt-", gpu);
}

StatePath file_path(const char* directory, const vam_file& file) {
  return StatePath(directory, "files/", file.serial);
}

StatePath buffer_path(const char* directory, const vam_bo& bo) {
  return StatePath(directory, "bufs/", bo.serial);
}

StatePath syncobj_path(const char* directory, std::uint64_t name) {
  return StatePath(directory, "syncobjs/", name);
}

StatePath fence_path(const char* directory, std::uint64_t id) {
  return StatePath(directory, "fences/", id);
}

FileTag tag_of(const struct stat& status, std::uint64_t device) {
  FileTag tag;
  if (status.st_dev != device) return tag;
  if (S_ISFIFO(status.st_mode) && (status.st_mode & 07777) == kFenceMode) {
    tag.kind = FileKind::Fence;
  } else if (S_ISREG(status.st_mode)) {
    const std::int64_t kind = status.st_mtim.tv_sec - kTagSecondsBase;
    if (kind >= 1 && kind <= 4) {
      tag.kind = static_cast<FileKind>(kind);
      tag.index = static_cast<std::uint32_t>(status.st_mtim.tv_nsec);
    }
  }
  return tag;
}

int open_tagged(const char* path, int flags) {
  const int fd = raw::openat(AT_FDCWD, path, flags & ~(O_CREAT | O_EXCL | O_TRUNC), 0);
  if (fd < 0) return -errno;
  if (::syscall(SYS_flock, fd, LOCK_SH) != 0) {
    const int error = errno;
    raw::close(fd);
    return -error;
  }
  return fd;
}

int create_tagged(const char* path, FileTag tag, int flags, std::uint64_t size, std::uint64_t* inode) {
  const int made = raw::openat(AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (made < 0) return -errno;
  struct stat status;
  const timespec times[2] = {{0, UTIME_OMIT},
                             {static_cast<time_t>(kTagSecondsBase + static_cast<std::int64_t>(tag.kind)),
                              static_cast<long>(tag.index)}};
  int error = 0;
  if ((size != 0 && ::syscall(SYS_ftruncate, made, size) != 0) ||
      ::syscall(SYS_utimensat, made, nullptr, times, 0) != 0 || raw::fstat(made, &status) != 0)
    error = errno;
  raw::close(made);
  if (error != 0) return -error;
  *inode = status.st_ino;
  return open_tagged(path, flags);
}

bool file_is_open(const char* path) {
  const int fd = raw::openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool open = ::syscall(SYS_flock, fd, LOCK_EX | LOCK_NB) != 0;
  raw::close(fd);
  return open;
}

}  // namespace vamdgpu
