// SPDX-License-Identifier: MIT
// Dump and pre-dump in CRIU's order (criu/cr-dump.c and seize.c of v3.17.1 to criu-dev, as far as a plugin
// sees it): everything in the main thread; plugins' exit() with the tasks still stopped; tasks resumed on
// failure, killed on success.
//
// The task's memory is its arena (subject_arena.h): there is no parasite here. Its device maps come from the
// table in the arena, because the virtual amdgpu's maps are, for /proc/PID/maps, maps of pool files.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "lookalike/images.h"
#include "lookalike/log.h"
#include "lookalike/options.h"
#include "lookalike/plugins.h"
#include "lookalike/service_fds.h"
#include "lookalike/stream.h"
#include "lookalike/task.h"
#include "lookalike/version.h"
#include "subject/arena.h"

namespace sluice::lookalike {
namespace {

// CRIU exits on any child that ends while tasks are being dumped, without calling exit() of plugins, but with
// all that exit(3) runs, on top of whatever it was doing (sigchld_handler() in criu/parasite-syscall.c).
void child_ended_in_dump(int, siginfo_t* info, void*) {
  if (info->si_code != CLD_EXITED && info->si_code != CLD_KILLED && info->si_code != CLD_DUMPED) return;
  static const char kText[] = "Error: a child ended while tasks are being dumped\n";
  (void)!::write(log_fd(), kText, sizeof(kText) - 1);
  ::exit(1);
}

// CRIU gives up when pausing and freezing take too long, on top of whatever it was doing: a system call that
// it was in ends with EINTR (alarm_handler() in criu/cr-dump.c). The first alarm comes after --timeout, the
// next five each after a tenth of that; CRIU has 10 seconds and 1.
constexpr int kAlarmsAfterTheFirst = 5, kPartsOfTheTimeout = 10;
itimerval g_next_alarm{};

itimerval timer(long milliseconds) {
  constexpr long kPerSecond = 1000;
  return {{}, {milliseconds / kPerSecond, milliseconds % kPerSecond * kPerSecond}};
}

void alarm_came(int) {
  static int attempts = 0;
  static const char kText[] = "Error: Timeout reached. Try to interrupt\n";
  (void)!::write(log_fd(), kText, sizeof(kText) - 1);
  if (attempts++ < kAlarmsAfterTheFirst) {
    (void)::setitimer(ITIMER_REAL, &g_next_alarm, nullptr);
    return;
  }
  static const char kFatal[] = "Error: FATAL: Unable to interrupt the current operation\n";
  (void)!::write(log_fd(), kFatal, sizeof(kFatal) - 1);
  std::abort();
}

void start_alarm(const Options& options) {
  struct sigaction action {};
  action.sa_handler = alarm_came;
  (void)::sigaction(SIGALRM, &action, nullptr);
  g_next_alarm = timer(options.timeout_ms / kPartsOfTheTimeout);
  const itimerval first = timer(options.timeout_ms);
  (void)::setitimer(ITIMER_REAL, &first, nullptr);
}

void stop_alarm() {
  const itimerval none{};
  (void)::setitimer(ITIMER_REAL, &none, nullptr);
}

void watch_children(bool on) {
  struct sigaction action {};
  if (on) {
    action.sa_sigaction = child_ended_in_dump;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
  } else {
    action.sa_handler = SIG_DFL;
  }
  (void)::sigaction(SIGCHLD, &action, nullptr);
}

bool refused(int hook_result) {
  return hook_result < 0 && hook_result != kNotSupported;
}

// The tables at the beginning of the task's arena.
int read_arena(pid_t pid, subject::Arena* arena) {
  constexpr std::size_t kBytes = offsetof(subject::Arena, events);
  const iovec local{arena, kBytes};
  const iovec remote{reinterpret_cast<void*>(subject::kArenaAddress), kBytes};
  if (::process_vm_readv(pid, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(kBytes) ||
      arena->magic != subject::kArenaMagic) {
    log_line(kError, "Error: %d is no subject: no arena\n", pid);
    return -1;
  }
  return 0;
}

std::vector<VmaEntry> device_vmas(const subject::Arena& arena) {
  std::vector<VmaEntry> vmas;
  for (std::uint32_t i = 0; i < arena.num_maps; ++i) {
    const subject::MapRecord& map = arena.maps[i];
    vmas.push_back({map.address, map.bytes, map.offset, map.prot, O_RDWR, map.path.data()});
  }
  std::sort(vmas.begin(), vmas.end(), [](const VmaEntry& a, const VmaEntry& b) { return a.start < b.start; });
  return vmas;
}

// HANDLE_DEVICE_VMA for each VMA, but one whose file is that of the VMA before inherits the answer. The fd is
// a new open of the device: what CRIU gets from map_files where the device lies on devtmpfs.
int handle_vmas(const std::vector<VmaEntry>& vmas) {
  std::string_view last;
  for (const VmaEntry& vma : vmas) {
    if (vma.path == last) continue;
    last = vma.path;
    const UniqueFd fd(::open(vma.path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0) {
      log_line(kError, "Error: can't open %s: %s\n", vma.path.c_str(), std::strerror(errno));
      return -1;
    }
    if (run_handle_device_vma(fd.get(), &status) < 0) {
      log_line(kError, "Error: can't handle non-regular mapping of %s\n", vma.path.c_str());
      return -1;
    }
  }
  return 0;
}

// A struct file that a plugin has dumped.
struct Known {
  UniqueFd fd;
  int id;
};

// DUMP_EXT_FILE once per struct file, in ascending order of descriptors. All of the tree's descriptors are
// held at once; CRIU holds a block of them. Tasks that share a file are beyond this look-alike.
int dump_files(pid_t pid, std::vector<Known>* files, std::vector<FdEntry>* entries) {
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) {
    log_line(kError, "Error: pidfd_open: %s\n", std::strerror(errno));
    return -1;
  }
  const std::size_t files_before = files->size();
  for (const int number : proc_numbers(pid, "fd")) {
    UniqueFd fd = fd_of(pidfd.get(), number);
    if (!fd) {
      log_line(kError, "Error: can't take descriptor %d: %s\n", number, std::strerror(errno));
      return -1;
    }
    const FileKind kind = kind_of(fd.get());
    if (kind == FileKind::Plain) continue;
    FdEntry entry{number, 0, cloexec_of(pid, number), {}};
    if (kind == FileKind::Fifo) {
      entry.fifo = link_of(fd.get());
      entries->push_back(entry);
      continue;
    }
    for (std::size_t i = 0; i < files->size(); ++i) {
      if (!same_file((*files)[i].fd.get(), fd.get())) continue;
      entry.id = (*files)[i].id;
      if (i < files_before) {
        log_line(kError, "Error: descriptor %d of %d is shared with another task\n", number, pid);
        return -1;
      }
    }
    if (entry.id == 0) {
      entry.id = static_cast<int>(files->size()) + 1;
      const int result = run_dump_ext_file(fd.get(), entry.id);
      if (result < 0) {
        log_line(kError, "Error: Can't dump file %d of that type [%s]\n", number, link_of(fd.get()).c_str());
        return -1;
      }
      files->push_back({std::move(fd), entry.id});
    }
    entries->push_back(entry);
  }
  return 0;
}

// As CRIU takes one out of the queue of a socket, whose descriptor comes behind all others here.
int dump_in_flight(const std::string& device, int id) {
  const UniqueFd fd(::open(device.c_str(), O_RDWR | O_CLOEXEC));
  return fd && run_dump_ext_file(fd.get(), id) >= 0 ? 0 : -1;
}

int dump_task(const Options& options, int images, unsigned number, std::vector<Known>* files) {
  const pid_t pid = options.pids[number];
  // 18 MiB, of which the tables alone are touched.
  const std::unique_ptr<subject::Arena> arena(new subject::Arena);
  if (read_arena(pid, arena.get()) != 0) return -1;
  const std::vector<VmaEntry> vmas = device_vmas(*arena);
  if (handle_vmas(vmas) != 0 || write_vmas(images, number, pid, vmas) != 0 || step(options, "vmas") != 0)
    return -1;
  std::vector<FdEntry> fds;
  if (dump_files(pid, files, &fds) != 0 || write_fds(images, number, fds) != 0 ||
      step(options, "dump_ext_file") != 0) {
    return -1;
  }
  check_setns();
  if (write_pages(images, number, pid, subject::kArenaAddress, arena->bytes) != 0) return -1;
  return step(options, "cpu_pages");
}

// The root's PAUSE_DEVICES comes before anything stands still, a child's when its parent does. What else is
// in the freezer's cgroup is seized when the root has been announced, and never announced.
int freeze(const Options& options, std::vector<Seized>& tasks, std::vector<Seized>& outside) {
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (refused(run_pid_hook(kPauseDevices, options.pids[i])) || (i == 0 && step(options, "pause") != 0))
      return -1;
    for (std::size_t other = 0; i == 0 && other < outside.size(); ++other) {
      if (outside[other].seize(options.outside[other]) != 0) return -1;
    }
    if (tasks[i].seize(options.pids[i]) != 0) return -1;
  }
  return step(options, "seized");
}

int checkpoint_devices(const Options& options) {
  for (const pid_t pid : options.pids) {
    if (refused(run_pid_hook(kCheckpointDevices, pid))) return -1;
  }
  return 0;
}

// The alarm still runs behind the hook, as it did before.
int checkpoint_devices_under_the_alarm(const Options& options) {
  const int result = checkpoint_devices(options);
  itimerval left{};
  (void)::getitimer(ITIMER_REAL, &left);
  if (options.timeout_ms != 0 && !timerisset(&left.it_value)) violation("a plugin has stopped the alarm");
  return result;
}

// The alarm goes on when this fails.
int collect_tree(const Options& options, std::vector<Seized>& tasks, std::vector<Seized>& outside) {
  start_alarm(options);
  if (freeze(options, tasks, outside) != 0) return -1;
  stream_frozen();
  if (kHostVersion.checkpoint_in_freezing && checkpoint_devices_under_the_alarm(options) != 0) return -1;
  stop_alarm();
  return 0;
}

int dump_all(const Options& options, int images, std::vector<Seized>& tasks, std::vector<Seized>& outside) {
  if (collect_tree(options, tasks, outside) != 0) return -1;
  watch_children(true);
  if (!kHostVersion.checkpoint_in_freezing && checkpoint_devices(options) != 0) return -1;
  if (step(options, "checkpoint") != 0) return -1;
  std::vector<Known> files;
  for (unsigned number = 0; number < tasks.size(); ++number) {
    if (dump_task(options, images, number, &files) != 0) return -1;
  }
  if (!options.in_flight.empty() &&
      dump_in_flight(options.in_flight, static_cast<int>(files.size()) + 1) != 0)
    return -1;
  if (write_tree(images, static_cast<unsigned>(tasks.size())) != 0) return -1;
  const int late = run_pid_hook(kDumpDevicesLate, options.pids.front());
  if ((late != 0 && late != kNotSupported) || step(options, "late") != 0) return -1;
  if (write_inventory(images, {kHostVersion.inventory_plugins, inventory_added()}) != 0) return -1;
  inventory_free();
  return step(options, "inventory");
}

}  // namespace

int dump(const Options& options) {
  const Before before = look_before();
  if (plugins_init(options.libdir, kDump) != 0) return -1;
  const int images = service(kImageFd);
  std::vector<Seized> tasks(options.pids.size());
  std::vector<Seized> outside(options.outside.size());  // run on whatever comes
  int ret = step(options, "init");
  if (ret == 0) ret = dump_all(options, images, tasks, outside);
  stop_alarm();
  (void)step(options, "before_exit");
  plugins_fini(kDump, ret);
  check_left_over(before);
  (void)step(options, "after_exit");
  if (streams()) close_service(kStreamerFd);
  watch_children(false);
  for (Seized& task : tasks) {
    if (ret == 0 && !options.leave_running) {
      task.kill();
    } else {
      (void)task.resume();
    }
  }
  log_line(kMessage, ret == 0 ? "Dumping finished successfully\n" : "Dumping FAILED.\n");
  return ret;
}

namespace {

// As pre_dump_one_task(): of a task that a signal has stopped nothing is asked.
int pre_dump_task(const Options& options, pid_t pid) {
  const std::unique_ptr<subject::Arena> arena(new subject::Arena);
  if (read_arena(pid, arena.get()) != 0) return -1;
  return handle_vmas(device_vmas(*arena)) == 0 ? step(options, "vmas") : -1;
}

int pre_dump_tree(const Options& options, const std::vector<bool>& stopped, std::vector<Seized>& tasks,
                  std::vector<Seized>& outside) {
  if (collect_tree(options, tasks, outside) != 0) return -1;
  watch_children(true);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    if (stopped[i]) {
      log_line(kMessage, "Warn: Stopped tasks are not supported\n");
    } else if (pre_dump_task(options, options.pids[i]) != 0) {
      return -1;
    }
  }
  return 0;
}

}  // namespace

// The tasks run before CRIU writes what it has of their memory. No version calls exit() of plugins here; it
// ends with all that exit(3) runs, after it has closed its image directory.
int pre_dump(const Options& options) {
  if (plugins_init(options.libdir, kPreDump) != 0) return -1;
  std::vector<Seized> tasks(options.pids.size());
  std::vector<Seized> outside(options.outside.size());
  std::vector<bool> stopped;
  for (const pid_t pid : options.pids) stopped.push_back(is_stopped(pid));
  int ret = step(options, "init");
  if (ret == 0) ret = pre_dump_tree(options, stopped, tasks, outside);
  stop_alarm();
  watch_children(false);
  for (Seized& task : tasks) (void)task.resume();
  for (Seized& task : outside) (void)task.resume();
  check_setns();
  if (ret == 0) ret = step(options, "cpu_pages");
  if (ret == 0) ret = write_inventory(service(kImageFd), {kHostVersion.inventory_plugins, inventory_added()});
  inventory_free();
  if (ret == 0) ret = step(options, "inventory");
  close_service(kImageFd);
  log_line(kMessage, ret == 0 ? "Pre-dumping finished successfully\n" : "Pre-dumping FAILED.\n");
  return ret;
}

}  // namespace sluice::lookalike
