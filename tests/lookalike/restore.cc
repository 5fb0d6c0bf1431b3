// SPDX-License-Identifier: MIT
// Restore, the main process' side (criu/cr-restore.c of v3.17.1 to criu-dev, as far as a plugin sees it).
#include "lookalike/restore.h"

#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <new>

#include "lookalike/images.h"
#include "lookalike/log.h"
#include "lookalike/plugins.h"
#include "lookalike/service_fds.h"
#include "lookalike/task.h"
#include "lookalike/version.h"

namespace sluice::lookalike {
namespace {

RestoreShared* g_shared = nullptr;  // one for each task
unsigned g_tasks = 0;
pid_t g_cgroupd = 0;                 // 0: there is none
volatile sig_atomic_t g_traced = 0;  // tasks are traced: their ends are looked at and left to be waited for

void fail_all() {
  for (unsigned i = 0; i < g_tasks; ++i) {
    g_shared[i].task = kTaskFailed;
    futex_wake(g_shared[i].task);
  }
}

// Any child that ends while tasks are being restored aborts the restore, whatever its exit status.
void child_ended(int, siginfo_t*, void*) {
  const int saved = errno;
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | (g_traced != 0 ? WNOWAIT : 0)) != 0 || info.si_pid == 0)
      break;
    if (info.si_code != CLD_EXITED && info.si_code != CLD_KILLED && info.si_code != CLD_DUMPED) break;
    fail_all();
    if (g_traced != 0) break;
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

// The child that moves threads into their cgroups. It ends when the tasks are there, or with main.
void start_cgroupd() {
  const pid_t main = ::getpid();
  g_cgroupd = fork_task();
  if (g_cgroupd != 0) return;
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  while (::getppid() == main) (void)::pause();
  ::_exit(0);
}

void stop_cgroupd() {
  if (g_cgroupd <= 0) return;
  sigset_t children, before;
  ::sigemptyset(&children);
  ::sigaddset(&children, SIGCHLD);
  (void)::sigprocmask(SIG_BLOCK, &children, &before);
  (void)::kill(g_cgroupd, SIGTERM);
  (void)::waitpid(g_cgroupd, nullptr, 0);
  (void)::sigprocmask(SIG_SETMASK, &before, nullptr);
}

bool wait_while(unsigned number, std::uint32_t state, std::uint32_t wanted) {
  std::atomic<std::uint32_t>& task = g_shared[number].task;
  while (task == state) futex_wait(task, state);
  return task == wanted;
}

// From the fork to the moment at which the tasks run by themselves. On failure they are dead or about to be
// killed.
int restore_tree(const Options& options, const std::vector<pid_t>& tasks, std::vector<Seized>& seized) {
  if (step(options, "forked") != 0) return -1;
  const int post = run_void_hook(kPostForking);
  if ((post < 0 && post != kNotSupported) || step(options, "post_forking") != 0) return -1;
  check_setns();
  for (unsigned i = 0; i < tasks.size(); ++i) {
    if (wait_while(i, kTaskBusy, kTaskRestored)) continue;
    log_line(kError, "Error: the task %d was not restored\n", tasks[i]);
    return -1;
  }
  stop_cgroupd();
  g_traced = 1;
  for (unsigned i = 0; i < tasks.size(); ++i) {
    if (seized[i].seize(tasks[i]) != 0) return -1;
  }
  // From here on a task that is let go runs, whoever lets it go: we, or the kernel when we are dead.
  log_line(kDebug, "tasks run when they are let go\n");
  for (unsigned i = 0; i < tasks.size(); ++i) {
    g_shared[i].go = 1;
    futex_wake(g_shared[i].go);
  }
  if (step(options, "seized") != 0) return -1;
  if (options.helper != 0) (void)run_pid_hook(kResumeDevicesLate, options.helper);
  for (unsigned i = 0; i < tasks.size(); ++i) {
    const int resumed = options.resumed_elsewhere ? 0 : run_pid_hook(kResumeDevicesLate, tasks[i]);
    if (resumed < 0 && resumed != kNotSupported) {
      log_line(kDebug, "restore late stage hook for external devices failed\n");  // and nothing else
    }
    if (i == 0 && step(options, "first_resumed") != 0) return -1;
  }
  if (step(options, "resume") != 0) return -1;
  // The detach of a killed task fails; so does the restore then.
  for (unsigned i = 0; i < tasks.size(); ++i) {
    if (seized[i].resume()) continue;
    log_line(kError, "Error: the task %d has died\n", tasks[i]);
    return -1;
  }
  for (unsigned i = 0; i < tasks.size(); ++i) {
    if (!wait_while(i, kTaskRestored, kTaskFree)) return -1;
  }
  return 0;
}

// Forks a task for each of the tree. False when one could not be forked.
bool fork_tasks(const Options& options, std::vector<pid_t>* tasks) {
  const pid_t main = ::getpid();
  for (unsigned i = 0; i < g_tasks; ++i) {
    const pid_t task = fork_task();
    if (task == 0) restore_task(options, main, i, g_shared[i]);
    if (task < 0) return false;
    tasks->push_back(task);
  }
  return true;
}

// Of a restore that failed. They were killed before exit(), which waits for them: nobody else does.
void end_tasks(const std::vector<pid_t>& tasks, std::vector<Seized>& seized) {
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  (void)::sigaction(SIGCHLD, &plain, nullptr);
  for (unsigned i = 0; i < tasks.size(); ++i) {
    if (!has_ended(tasks[i])) violation("task %d of a restore that failed lives after exit()", tasks[i]);
    seized[i].kill();
    (void)::waitpid(tasks[i], nullptr, __WALL);
  }
}

}  // namespace

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  (void)::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, value, nullptr, nullptr, 0);
}

bool futex_wait_a_moment(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  constexpr timespec kMoment{0, 100'000'000};
  (void)::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, value, &kMoment, nullptr,
                  0);
  return word != value;
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  (void)::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
                  0);
}

int restore(const Options& options) {
  void* shared = ::mmap(nullptr, kMostTasks * sizeof(RestoreShared), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  g_shared = new (shared) RestoreShared[kMostTasks];
  const Before before = look_before();
  if (load_plugins(options) != 0) {
    if (plugins_loaded()) plugins_fini(kRestore, -1);
    return -1;
  }
  int ret = step(options, "init");

  if (read_tree(service(kImageFd), &g_tasks) != 0 || g_tasks == 0 || g_tasks > kMostTasks) {
    log_line(kError, "Error: how many tasks there are is not in the images\n");
    ret = -1;
  }
  std::vector<Seized> seized(g_tasks);
  std::vector<pid_t> tasks;
  if (ret == 0) {
    if (options.cgroupd) start_cgroupd();
    watch_children();
    for (const int thread : extra_threads()) violation("thread %d lives at the fork", thread);
    ret = fork_tasks(options, &tasks) ? restore_tree(options, tasks, seized) : -1;
  }
  if (ret == 0) {
    log_line(kInfo, "Restore finished successfully. Tasks resumed.\n");
    if (!options.pidfile.empty()) {
      std::ofstream file(options.pidfile);
      for (const pid_t task : tasks) file << task << '\n';
    }
    (void)step(options, "detached");
  } else {
    // Nobody waits for them.
    for (const pid_t task : tasks) (void)::kill(task, SIGKILL);
    log_line(kError, "Restoring FAILED.\n");
  }
  plugins_fini(kRestore, ret);
  if (ret != 0) end_tasks(tasks, seized);
  check_left_over(before);
  (void)step(options, "after_exit");
  if (ret == 0 && !options.detach) {
    struct sigaction plain {};
    plain.sa_handler = SIG_DFL;
    (void)::sigaction(SIGCHLD, &plain, nullptr);
    for (const pid_t task : tasks) (void)::waitpid(task, nullptr, 0);
  }
  return ret;
}

}  // namespace sluice::lookalike
