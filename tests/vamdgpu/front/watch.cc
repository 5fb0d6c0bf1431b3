// SPDX-License-Identifier: MIT
// Eventfds that wait for syncobjs (see watch.h). One thread looks after all of a process's watches; it starts
// with the first and ends with the last. The table is guarded by the shared lock.
#include "watch.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "own_thread.h"
#include "raw.h"

namespace vamdgpu {
namespace {

constexpr int kMaxWatches = 64;
constexpr int kLowestPrivateFd = 900;  // out of the way of the program's own numbers

struct Watch {
  bool used = false;
  std::uint32_t syncobj = 0;
  std::uint64_t point = 0;
  bool available = false;
  int fd = -1;
};

struct Watches {
  int pid = 0;
  bool running = false;
  Watch table[kMaxWatches];
};

Watches g_watches;

bool is_met(vam_model* model, const Watch& watch) {
  std::uint32_t fence = 0;
  if (!vam_syncobj_get(model, watch.syncobj, watch.point, &fence)) return false;
  return watch.available || fence == 0 || VAM_FENCE_AT(model, fence)->state == VAM_FENCE_DONE;
}

void* watch_main(void*) {
  const Local& machine = *local();
  for (;;) {
    std::uint32_t seen = 0;
    {
      Locked locked(machine.shared->lock);
      vam_model* model = machine.model();
      bool left = false;
      for (Watch& watch : g_watches.table) {
        if (!watch.used) continue;
        if (is_met(model, watch)) {
          const std::uint64_t one = 1;
          (void)!::syscall(SYS_write, watch.fd, &one, sizeof(one));
          raw::close(watch.fd);
          vam_syncobj_unref(model, watch.syncobj);
          watch = Watch();
        }
        left = left || watch.used;
      }
      if (!left) {
        g_watches.running = false;
        return nullptr;
      }
      seen = machine.shared->change.load();
    }
    wait_for_change(machine.shared, seen, UINT64_MAX);
  }
}

bool start_thread() {
  pthread_t thread;
  const bool started = start_own_thread("vamdgpu-sync", watch_main, nullptr, &thread);
  if (started) ::pthread_detach(thread);
  return started;
}

// 0, -EBADF when it is not open, -EINVAL when it is something else.
int check_eventfd(int fd) {
  char path[32], text[64];
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  const ssize_t length = raw::readlinkat(AT_FDCWD, path, text, sizeof(text) - 1);
  if (length <= 0) return -EBADF;
  text[length] = 0;
  return std::strcmp(text, "anon_inode:[eventfd]") == 0 ? 0 : -EINVAL;
}

}  // namespace

int watch(const Local& machine, std::uint32_t syncobj, std::uint64_t point, bool available, int fd) {
  const int pid = static_cast<int>(::syscall(SYS_getpid));
  if (g_watches.pid != pid) {  // a child after fork starts empty
    for (Watch& old : g_watches.table) old = Watch();
    g_watches.running = false;
    g_watches.pid = pid;
  }
  const int error = check_eventfd(fd);
  if (error != 0) return error;
  for (Watch& slot : g_watches.table) {
    if (slot.used) continue;
    const long copy = ::syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, kLowestPrivateFd);
    if (copy < 0) return -errno;
    slot = {true, syncobj, point, available, static_cast<int>(copy)};
    vam_syncobj_ref(machine.model(), syncobj);
    if (!g_watches.running) g_watches.running = start_thread();
    if (!g_watches.running) {
      raw::close(slot.fd);
      slot = Watch();
      vam_syncobj_unref(machine.model(), syncobj);
      return -ENOMEM;
    }
    announce_change(machine.shared);
    return 0;
  }
  return -ENOMEM;
}

}  // namespace vamdgpu
