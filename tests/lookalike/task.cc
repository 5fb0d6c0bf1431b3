// SPDX-License-Identifier: MIT
#include "lookalike/task.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

#include "fault/seam/plan.h"
#include "lookalike/log.h"

namespace sluice::lookalike {
namespace {

constexpr unsigned kMemMajor = 1;  // null, zero, urandom
constexpr unsigned kTtyMajor = 4;
constexpr unsigned kTtyAuxMajor = 5;
constexpr unsigned kPtsFirst = 136, kPtsLast = 143;

std::string proc_path(pid_t pid, const std::string& rest) {
  return "/proc/" + (pid == 0 ? std::string("self") : std::to_string(pid)) + "/" + rest;
}

// Whether what has this in its name is the tests' own: the virtual amdgpu's, the seam's, or a coverage
// build's counters.
bool is_of_tests(const std::string& name) {
  const auto is_under = [&name](const char* variable) {
    const char* const path = std::getenv(variable);
    return path != nullptr && name.find(path) != std::string::npos;
  };
  return name.find("vamdgpu") != std::string::npos || name.find(".profraw") != std::string::npos ||
         is_under("VAMDGPU_DIR") || is_under(seam::kPlanVariable);
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::vector<int> proc_numbers(pid_t pid, const char* what) {
  std::vector<int> numbers;
  std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(proc_path(pid, what).c_str()), &::closedir);
  if (!directory) return numbers;
  while (const dirent* entry = ::readdir(directory.get())) {
    if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
    const int number = std::atoi(entry->d_name);
    if (pid == 0 && std::strcmp(what, "fd") == 0 && number == ::dirfd(directory.get())) continue;
    numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

int Seized::seize(pid_t pid) {
  pid_ = pid;
  // New threads appear until every known one is stopped: look again until a round finds none.
  for (bool found = true; found;) {
    found = false;
    for (const int thread : proc_numbers(pid, "task")) {
      if (std::find(threads_.begin(), threads_.end(), thread) != threads_.end()) continue;
      if (::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0 ||
          ::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) != 0) {
        if (errno == ESRCH && thread != pid) continue;  // it has just ended
        log_line(kError, "Error: can't seize %d: %s\n", thread, std::strerror(errno));
        (void)resume();
        return -1;
      }
      int status = 0;
      if (::waitpid(thread, &status, __WALL) != thread || !WIFSTOPPED(status)) {
        if (thread != pid) continue;
        log_line(kError, "Error: %d does not stop\n", thread);
        (void)resume();
        return -1;
      }
      threads_.push_back(thread);
      found = true;
    }
  }
  if (!threads_.empty()) return 0;
  log_line(kError, "Error: no process %d\n", pid);
  return -1;
}

bool Seized::resume() {
  std::erase_if(threads_,
                [](pid_t thread) { return ::ptrace(PTRACE_DETACH, thread, nullptr, nullptr) == 0; });
  return threads_.empty();
}

void Seized::kill() {
  if (threads_.empty()) return;
  (void)::kill(pid_, SIGKILL);
  // The kernel reports the leader's end only when every other thread has been waited for.
  std::stable_partition(threads_.begin(), threads_.end(), [this](pid_t thread) { return thread != pid_; });
  for (const pid_t thread : threads_) {
    int status = 0;
    while (::waitpid(thread, &status, __WALL) == thread && !WIFEXITED(status) && !WIFSIGNALED(status)) {
    }
  }
  threads_.clear();
}

bool has_ended(pid_t pid) {
  for (const int thread : proc_numbers(pid, "task")) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/task/" + std::to_string(thread) + "/stat");
    std::string text;
    std::getline(stat, text);
    const std::size_t behind_name = text.rfind(") ");
    if (behind_name == std::string::npos) continue;
    const char state = text[behind_name + 2];
    if (state != 'Z' && state != 'X') return false;
  }
  return true;
}

bool is_stopped(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("State:")) return line.find("\tT") != std::string::npos;
  }
  return false;
}

std::string link_of(int fd) {
  std::array<char, 512> text{};
  const std::string path = proc_path(0, "fd/" + std::to_string(fd));
  const ssize_t length = ::readlink(path.c_str(), text.data(), text.size() - 1);
  return length < 0 ? std::string() : std::string(text.data(), static_cast<std::size_t>(length));
}

bool front_fd(int fd) {
  return is_of_tests(link_of(fd));
}

FileKind kind_of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return FileKind::Plain;
  if (link_of(fd).starts_with("/dmabuf")) return FileKind::DmaBuf;
  if (S_ISFIFO(status.st_mode) && link_of(fd).starts_with("/")) return FileKind::Fifo;
  if (!S_ISCHR(status.st_mode)) return FileKind::Plain;
  const unsigned number = major(status.st_rdev);
  const bool terminal =
      number == kTtyMajor || number == kTtyAuxMajor || (number >= kPtsFirst && number <= kPtsLast);
  return number == kMemMajor || terminal ? FileKind::Plain : FileKind::Device;
}

UniqueFd fd_of(int pidfd, int number) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_getfd, pidfd, number, 0)));
  if (fd) (void)::fcntl(fd.get(), F_SETFD, 0);
  return fd;
}

bool same_file(int a, int b) {
  return ::syscall(SYS_kcmp, ::getpid(), ::getpid(), KCMP_FILE, a, b) == 0;
}

bool cloexec_of(pid_t pid, int number) {
  std::ifstream file(proc_path(pid, "fdinfo/" + std::to_string(number)));
  std::string key, value;
  while (file >> key >> value) {
    if (key == "flags:") return (std::strtoul(value.c_str(), nullptr, 8) & O_CLOEXEC) != 0;
  }
  return false;
}

std::string thread_name(int thread) {
  return first_line(proc_path(0, "task/" + std::to_string(thread) + "/comm"));
}

namespace {

// PF_EXITING (include/linux/sched.h), as /proc/PID/stat shows it. pthread_join returns before the kernel has
// taken the thread off its list.
constexpr unsigned long kExiting = 0x4;

bool is_ending(int thread) {
  const std::string stat = first_line(proc_path(0, "task/" + std::to_string(thread) + "/stat"));
  // Behind the name, in parentheses: state, five numbers, flags (proc(5)).
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  std::string field;
  for (int i = 0; i < 7; ++i) fields >> field;
  return !fields || (std::strtoul(field.c_str(), nullptr, 10) & kExiting) != 0;
}

}  // namespace

std::vector<int> extra_threads() {
  std::vector<int> threads;
  for (const int thread : proc_numbers(0, "task")) {
    if (thread == ::getpid() || is_ending(thread)) continue;
    if (thread_name(thread).starts_with("vamdgpu")) continue;
#if defined(__SANITIZE_THREAD__)
    if (thread_name(thread) == thread_name(::getpid()))
      continue;  // the runtime's own; a plugin names its threads
#endif
    threads.push_back(thread);
  }
  return threads;
}

std::set<std::string> maps_of_note() {
  std::set<std::string> maps;
  std::ifstream smaps("/proc/self/smaps");
  std::string map;
  for (std::string line; std::getline(smaps, line);) {
    const std::size_t word = line.find_first_of(" :");
    if (word != std::string::npos && line[word] == ' ')
      map = line;  // 7f12...-7f13... rw-p ...; else "Rss: ..."
    if (!line.starts_with("VmFlags:") || is_of_tests(map)) continue;
    if (line.find(" sh") != std::string::npos || line.find(" dc") != std::string::npos) maps.insert(map);
  }
  return maps;
}

}  // namespace sluice::lookalike
