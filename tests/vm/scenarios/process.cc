// SPDX-License-Identifier: MIT
#include "process.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <exception>
#include <fstream>
#include <iostream>
#include <sstream>
#include <system_error>

#include "base/unique_fd.h"

namespace sluice::vm_test {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

int shell_status(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::optional<int> reap(pid_t pid) {
  int status = 0;
  pid_t waited = 0;
  do {
    waited = ::waitpid(pid, &status, 0);
  } while (waited < 0 && errno == EINTR);
  if (waited < 0) return std::nullopt;
  return shell_status(status);
}

sigset_t only_sigchld() {
  sigset_t set;
  (void)::sigemptyset(&set);
  (void)::sigaddset(&set, SIGCHLD);
  return set;
}

// Readable when a child has ended. The signal is blocked for good: a child that ends at any time is told.
UniqueFd children_ended() {
  const sigset_t ended = only_sigchld();
  UniqueFd fd(::signalfd(-1, &ended, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!fd || ::sigprocmask(SIG_BLOCK, &ended, nullptr) != 0) fail("signalfd");
  return fd;
}

[[noreturn]] void become(const Launch& launch) noexcept {
  try {
    const sigset_t ended = only_sigchld();
    (void)::sigprocmask(SIG_UNBLOCK, &ended, nullptr);
    if (launch.own_session) (void)::setsid();
    if (launch.prepare) launch.prepare();
    const int input = ::open("/dev/null", O_RDWR);
    const int output = launch.output.empty()
                           ? input
                           : ::open(launch.output.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (input < 0 || output < 0) ::_exit(126);
    (void)::dup2(input, STDIN_FILENO);
    (void)::dup2(output, STDOUT_FILENO);
    (void)::dup2(output, STDERR_FILENO);
    if (input > STDERR_FILENO) (void)::close(input);
    for (const auto& [name, value] : launch.environment) (void)::setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> argv;
    for (const std::string& text : launch.arguments) argv.push_back(const_cast<char*>(text.c_str()));
    argv.push_back(nullptr);
    (void)::execvp(argv[0], argv.data());
  } catch (const std::exception& e) {
    (void)!::write(STDERR_FILENO, e.what(), std::string_view(e.what()).size());
    (void)!::write(STDERR_FILENO, "\n", 1);
  }
  ::_exit(127);
}

}  // namespace

pid_t start(const Launch& launch) {
  clone_args arguments{};
  arguments.flags = launch.namespaces;
  arguments.exit_signal = SIGCHLD;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail("pipe2");
  const UniqueFd wait(ends[0]);
  UniqueFd go(ends[1]);
  const auto pid = static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof arguments));
  if (pid < 0) fail("start of " + launch.arguments.front());
  if (pid == 0) {
    go.reset();
    char byte = 0;
    (void)!::read(wait.get(), &byte, 1);  // end of file: its ids are set
    become(launch);
  }
  if ((launch.namespaces & CLONE_NEWUSER) != 0) {
    for (const char* name : {"uid_map", "gid_map"})
      write_file("/proc/" + std::to_string(pid) + "/" + name, "0 0 65536\n");
  }
  return pid;
}

std::optional<int> wait_for(pid_t pid, Seconds patience) {
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)));
  if (!pidfd) return reap(pid);
  const Clock::time_point end = Clock::now() + patience;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    pollfd wait{pidfd.get(), POLLIN, 0};
    const int ready = ::poll(&wait, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (ready > 0) return reap(pid);
    if (ready == 0) return std::nullopt;
    if (errno != EINTR) fail("poll of a pidfd");
  }
}

std::optional<int> run(const Launch& launch, Seconds patience) {
  const pid_t pid = start(launch);
  const std::optional<int> status = wait_for(pid, patience);
  if (!status) {
    std::cout << "---- " << launch.arguments.front() << " hangs: where its threads stand\n"
              << stacks_of(pid) << std::flush;
    kill_and_reap(pid);
  }
  return status;
}

void kill_and_reap(pid_t pid) {
  (void)::kill(pid, SIGKILL);
  (void)reap(pid);
}

std::string stacks_of(pid_t pid) {
  std::string text;
  std::error_code gone;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
    text += "thread " + task.path().filename().string() + " ";
    for (const char* file : {"comm", "syscall", "stack"}) text += read_file(task.path() / file);
  }
  return text;
}

bool eventually(const std::function<bool()>& done, Seconds patience) {
  static const UniqueFd children = children_ended();
  const Clock::time_point end = Clock::now() + patience;
  for (;;) {
    // Armed before the look: what happens between the look and the poll ends the poll.
    signalfd_siginfo signal;
    while (::read(children.get(), &signal, sizeof signal) > 0) {
    }
    if (done()) return true;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) return false;
    constexpr std::int64_t kLookAgainMs = 20;  // the driver tells of no changes
    pollfd wait{children.get(), POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(std::min(left.count(), kLookAgainMs))) < 0 && errno != EINTR)
      fail("poll");
  }
}

std::vector<pid_t> living_children() {
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
  std::vector<pid_t> children;
  std::istringstream list(read_file("/proc/self/task/" + std::to_string(::getpid()) + "/children"));
  for (pid_t pid = 0; list >> pid;) children.push_back(pid);
  return children;
}

bool is_alive(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t after_name = stat.rfind(") ");
  return after_name != std::string::npos && stat[after_name + 2] != 'Z' && stat[after_name + 2] != 'X';
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

void become_subreaper() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) fail("PR_SET_CHILD_SUBREAPER");
}

// Those of inodes, and of render nodes, may be others after a restore.
static std::string without_numbers(std::string name) {
  std::erase_if(name, [](unsigned char letter) { return std::isdigit(letter) != 0; });
  return name;
}

Strings possessions_of(pid_t pid) {
  const std::filesystem::path proc = "/proc/" + std::to_string(pid);
  Strings all;
  for (const auto& entry : std::filesystem::directory_iterator(proc / "fd")) {
    all.push_back("fd " + entry.path().filename().string() + " of " +
                  without_numbers(std::filesystem::read_symlink(entry.path())));
  }
  std::size_t threads = 0;
  for (const auto& entry : std::filesystem::directory_iterator(proc / "task"))
    threads += entry.exists() ? 1 : 0;
  all.push_back("threads " + std::to_string(threads));
  std::ifstream maps(proc / "maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string range, rights, offset, device, inode, path;
    words >> range >> rights >> offset >> device >> inode >> path;
    // Private maps are cut and joined as the kernel likes. Render nodes may have other numbers.
    if (path.empty() || !rights.ends_with('s')) continue;
    all.push_back(without_numbers(path) + " at " + range + " " + rights);
  }
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace sluice::vm_test
