// SPDX-License-Identifier: MIT
// criu-host-VERSION: loads plugins as that version of CRIU does and drives them through a dump or a restore
// of the subject. Exit status: 0 success, 1 the operation failed, 2 usage, 3 the plugin did something that a
// real CRIU breaks on (see "violation:" in the log).
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/unique_fd.h"
#include "lookalike/log.h"
#include "lookalike/options.h"
#include "lookalike/restore.h"
#include "lookalike/service_fds.h"
#include "lookalike/stream.h"
#include "lookalike/task.h"
#include "lookalike/version.h"

namespace sluice::lookalike {
namespace {

constexpr int kControlFloor = 4000;  // the control descriptor is kept out of every task's way

int usage() {
  std::fputs(
      "usage: criu-host-VERSION dump|pre-dump --pid PID [--pid PID]... --images DIR --libdir DIR "
      "[--outside PID]... [--in-flight DEVICE] [--leave-running] [--timeout-ms N]\n"
      "       criu-host-VERSION restore --images DIR --libdir DIR [--detach] [--pidfile FILE]\n"
      "       [--cgroupd] [--resumed-elsewhere] [--helper PID]\n"
      "       [--log FILE] [--log-level N] [--fail-after STEP] [--hold STEP] [--control-fd N] [--stream]\n",
      stderr);
  return 2;
}

bool parse(int argc, char** argv, Options* options) {
  if (argc < 2) return false;
  options->command = argv[1];
  const option table[] = {{"pid", required_argument, nullptr, 'p'},
                          {"outside", required_argument, nullptr, 'O'},
                          {"in-flight", required_argument, nullptr, 'F'},
                          {"images", required_argument, nullptr, 'i'},
                          {"libdir", required_argument, nullptr, 'L'},
                          {"timeout-ms", required_argument, nullptr, 't'},
                          {"log", required_argument, nullptr, 'o'},
                          {"log-level", required_argument, nullptr, 'v'},
                          {"leave-running", no_argument, nullptr, 'R'},
                          {"detach", no_argument, nullptr, 'd'},
                          {"cgroupd", no_argument, nullptr, 'g'},
                          {"resumed-elsewhere", no_argument, nullptr, 'e'},
                          {"helper", required_argument, nullptr, 'H'},
                          {"pidfile", required_argument, nullptr, 'P'},
                          {"fail-after", required_argument, nullptr, 'f'},
                          {"hold", required_argument, nullptr, 'h'},
                          {"control-fd", required_argument, nullptr, 'c'},
                          {"stream", no_argument, nullptr, 'S'},
                          {"prev-images-dir", required_argument, nullptr, 'A'},
                          {nullptr, 0, nullptr, 0}};
  for (int choice = 0; (choice = ::getopt_long(argc - 1, argv + 1, "", table, nullptr)) != -1;) {
    switch (choice) {
      case 'p':
        options->pids.push_back(std::atoi(optarg));
        break;
      case 'O':
        options->outside.push_back(std::atoi(optarg));
        break;
      case 'i':
        options->images = optarg;
        break;
      case 'L':
        options->libdir = optarg;
        break;
      case 'o':
        options->log = optarg;
        break;
      case 'v':
        options->log_level = static_cast<unsigned>(std::atoi(optarg));
        break;
      case 't':
        options->timeout_ms = std::atol(optarg);
        break;
      case 'R':
        options->leave_running = true;
        break;
      case 'S':
        options->stream = true;
        break;
      case 'A':
        options->parent = optarg;
        break;
      case 'd':
        options->detach = true;
        break;
      case 'g':
        options->cgroupd = true;
        break;
      case 'e':
        options->resumed_elsewhere = true;
        break;
      case 'F':
        options->in_flight = optarg;
        break;
      case 'H':
        options->helper = std::atoi(optarg);
        break;
      case 'P':
        options->pidfile = optarg;
        break;
      case 'f':
        options->fail_after = optarg;
        break;
      case 'h':
        options->hold = optarg;
        break;
      case 'c':
        options->control_fd = std::atoi(optarg);
        break;
      default:
        return false;
    }
  }
  const bool dumps = options->command == "dump" || options->command == "pre-dump";
  if (!dumps && options->command != "restore") return false;
  return !options->images.empty() && !options->libdir.empty() && (!dumps || !options->pids.empty());
}

int run(Options& options) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
  }
  (void)::signal(SIGPIPE, SIG_IGN);
  if (options.control_fd >= 0) {
    const int high = ::fcntl(options.control_fd, F_DUPFD_CLOEXEC, kControlFloor);
    if (high < 0) return 1;
    ::close(options.control_fd);
    options.control_fd = high;
  }
  const int log = options.log.empty()
                      ? ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)
                      : ::open(options.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) return 1;
  install_service(kLogFd, log);
  log_init(service(kLogFd), options.log_level);

  if (options.command != "restore") (void)::mkdir(options.images.c_str(), 0700);
  const int images = ::open(options.images.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int proc = ::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (images < 0 || proc < 0) {
    log_line(kError, "Error: can't open %s: %s\n", options.images.c_str(), std::strerror(errno));
    return 1;
  }
  // As open_image_dir(): one that is there already stays, and no stream has any.
  if (!options.parent.empty() && !options.stream &&
      ::symlinkat(options.parent.c_str(), images, "parent") != 0 && errno != EEXIST) {
    log_line(kError, "Error: can't link a parent snapshot: %s\n", std::strerror(errno));
    return 1;
  }
  install_service(kImageFd, images);
  install_service(kProcFd, proc);
  if (options.stream && stream_connect(options.images, options.command == "dump") != 0) return 1;

  int ret = 0;
  if (options.command == "dump") ret = dump(options);
  if (options.command == "pre-dump") ret = pre_dump(options);
  if (options.command == "restore") ret = restore(options);
  if (violations() > 0) return 3;
  return ret == 0 ? 0 : 1;
}

}  // namespace

int step(const Options& options, const char* name) {
  log_line(kDebug, "step %s\n", name);
  if (options.hold == name && options.control_fd >= 0) {
    const std::string line = std::string(name) + "\n";
    char answer = 0;
    (void)!::write(options.control_fd, line.data(), line.size());
    while (::read(options.control_fd, &answer, 1) < 0 && errno == EINTR) {
    }
  }
  if (options.fail_after != name) return 0;
  log_line(kError, "Error: failing after %s, as asked\n", name);
  return -1;
}

void check_setns() {
#if defined(__SANITIZE_THREAD__)
  return;  // the runtime's own thread shares our file system information
#endif
  const UniqueFd mounts(::open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC));
  // setns moves us to the namespace's root, out of any chroot.
  const UniqueFd root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  const UniqueFd place(::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!mounts || !root || !place) return;
  if (::setns(mounts.get(), CLONE_NEWNS) != 0) {
    if (errno != EINVAL) return;
    violation("setns(CLONE_NEWNS) is refused: threads share our file system information");
    for (const int thread : proc_numbers(0, "task"))
      log_line(kError, "thread %d: %s\n", thread, thread_name(thread).c_str());
    return;
  }
  if (::fchdir(root.get()) != 0 || ::chroot(".") != 0 || ::fchdir(place.get()) != 0) {
    violation("the host's own root directory is lost");
  }
}

Before look_before() {
  return {proc_numbers(0, "fd"), maps_of_note()};
}

void check_left_over(const Before& before) {
  for (const int thread : extra_threads())
    violation("thread %d (%s) lives after exit()", thread, thread_name(thread).c_str());
  for (const int fd : proc_numbers(0, "fd")) {
    if (!std::binary_search(before.fds.begin(), before.fds.end(), fd) && !front_fd(fd) && !is_service(fd))
      violation("descriptor %d (%s) is open after exit()", fd, link_of(fd).c_str());
  }
  for (const std::string& map : maps_of_note()) {
    if (!before.maps.contains(map)) violation("a map is left after exit(): %s", map.c_str());
  }
}

}  // namespace sluice::lookalike

int main(int argc, char** argv) {
  sluice::lookalike::Options options;
  if (!sluice::lookalike::parse(argc, argv, &options)) return sluice::lookalike::usage();
  return sluice::lookalike::run(options);
}
