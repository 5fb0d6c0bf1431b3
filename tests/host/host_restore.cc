// SPDX-License-Identifier: MIT
// Restore, the main process' side (criu/cr-restore.c of v3.17.1 to criu-dev, as far as a plugin sees it).
#include "host_restore.h"

#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <new>

#include "host_images.h"
#include "host_log.h"
#include "host_plugins.h"
#include "host_service_fds.h"
#include "host_task.h"
#include "host_version.h"

namespace sluice::host {
namespace {

RestoreShared* g_shared = nullptr;
volatile sig_atomic_t g_traced_pid =
    0;  // while stops of this task may be pending, only its end is looked for

// Any child that ends while tasks are being restored aborts the restore, whatever its exit status.
void child_ended(int, siginfo_t*, void*) {
  const int saved = errno;
  for (;;) {
    siginfo_t info{};
    const bool traced = g_traced_pid != 0;
    const int options = WEXITED | WNOHANG | (traced ? WNOWAIT : 0);
    if (::waitid(traced ? P_PID : P_ALL, static_cast<id_t>(g_traced_pid), &info, options) != 0 ||
        info.si_pid == 0)
      break;
    if (info.si_code != CLD_EXITED && info.si_code != CLD_KILLED && info.si_code != CLD_DUMPED) break;
    g_shared->task = kTaskFailed;
    futex_wake(g_shared->task);
    if (traced) break;
  }
  errno = saved;
}

void watch_children() {
  struct sigaction action {};
  action.sa_sigaction = child_ended;
  action.sa_flags = SA_SIGINFO | SA_NOCLDSTOP;
  (void)::sigaction(SIGCHLD, &action, nullptr);
  sigset_t blocked;
  ::sigfillset(&blocked);
  ::sigdelset(&blocked, SIGCHLD);
  (void)::sigprocmask(SIG_SETMASK, &blocked, nullptr);
}

// As CRIU: a bare clone without any atfork handler. Sanitizer runtimes need theirs.
pid_t fork_task() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return ::fork();
#else
  return static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, 0L));
#endif
}

int load_plugins(const Options& options) {
  const int images = service(kImageFd);
  Inventory inventory;
  if (kHostVersion.fdstore_in_init) fdstore_init();
  if (!kHostVersion.init_before_inventory) {
    if (read_inventory(images, &inventory) != 0) return -1;
    inventory_load(inventory.has_plugins, inventory.plugins);
  }
  if (plugins_init(options.libdir, kRestore) != 0) return -1;
  if (kHostVersion.init_before_inventory && read_inventory(images, &inventory) != 0) return -1;
  if (!kHostVersion.fdstore_in_init) fdstore_init();
  if (kHostVersion.inventory_plugins && inventory_check_left() != 0) return -1;
  const int result = run_void_hook(kRestoreInit);
  return result < 0 && result != kNotSupported ? -1 : 0;
}

// From the fork to the moment at which the task runs by itself. On failure the task is dead or about to be
// killed.
int restore_root(const Options& options, pid_t task, Seized& seized) {
  if (step(options, "forked") != 0) return -1;
  const int post = run_void_hook(kPostForking);
  if ((post < 0 && post != kNotSupported) || step(options, "post_forking") != 0) return -1;
  check_setns();
  while (g_shared->task == kTaskBusy) futex_wait(g_shared->task, kTaskBusy);
  if (g_shared->task != kTaskRestored) {
    log_line(kError, "Error: the task %d was not restored\n", task);
    return -1;
  }
  g_traced_pid = task;
  if (seized.seize(task) != 0 || step(options, "seized") != 0) return -1;
  const int resumed = run_pid_hook(kResumeDevicesLate, task);
  if (resumed < 0 && resumed != kNotSupported) {
    log_line(kDebug, "restore late stage hook for external devices failed\n");  // and nothing else
  }
  if (step(options, "resume") != 0) return -1;
  // The detach of a killed task fails; so does the restore then.
  if (!seized.resume()) {
    log_line(kError, "Error: the task %d has died\n", task);
    return -1;
  }
  g_shared->go = 1;
  futex_wake(g_shared->go);
  // Until it says so the task would still die with us.
  while (g_shared->task == kTaskRestored) futex_wait(g_shared->task, kTaskRestored);
  return g_shared->task == kTaskFree ? 0 : -1;
}

}  // namespace

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  (void)::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, value, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  (void)::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
                  0);
}

int restore(const Options& options) {
  const std::vector<int> fds_before = proc_numbers(0, "fd");
  if (load_plugins(options) != 0) {
    if (plugins_loaded()) plugins_fini(kRestore, -1);
    return -1;
  }
  int ret = step(options, "init");

  void* shared =
      ::mmap(nullptr, sizeof(RestoreShared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  g_shared = new (shared) RestoreShared;
  Seized seized;
  pid_t task = 0;
  if (ret == 0) {
    watch_children();
    for (const int thread : extra_threads()) violation("thread %d lives at the fork", thread);
    task = fork_task();
    if (task == 0) restore_task(options, *g_shared);
    ret = task > 0 ? restore_root(options, task, seized) : -1;
  }
  if (ret == 0) {
    log_line(kInfo, "Restore finished successfully. Tasks resumed.\n");
    if (!options.pidfile.empty()) std::ofstream(options.pidfile) << task << '\n';
    (void)step(options, "detached");
  } else {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_DFL;
    (void)::sigaction(SIGCHLD, &ignore, nullptr);
    if (task > 0) {
      (void)::kill(task, SIGKILL);
      seized.kill();
      (void)::waitpid(task, nullptr, __WALL);
    }
    log_line(kError, "Restoring FAILED.\n");
  }
  plugins_fini(kRestore, ret);
  for (const int thread : extra_threads()) violation("thread %d lives after exit()", thread);
  for (const int fd : proc_numbers(0, "fd")) {
    if (!std::binary_search(fds_before.begin(), fds_before.end(), fd) && !front_fd(fd) && !is_service(fd)) {
      violation("descriptor %d (%s) is open after exit()", fd, link_of(fd).c_str());
    }
  }
  (void)step(options, "after_exit");
  if (ret == 0 && !options.detach) {
    struct sigaction plain {};
    plain.sa_handler = SIG_DFL;
    (void)::sigaction(SIGCHLD, &plain, nullptr);
    (void)::waitpid(task, nullptr, 0);
  }
  return ret;
}

}  // namespace sluice::host
