// SPDX-License-Identifier: MIT
#include "command_run.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "base/unique_fd.h"
#include "machine_directory.h"

namespace sluice::cli_test {
namespace {

UniqueFd must_open(int fd, const char* what) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
  return UniqueFd(fd);
}

UniqueFd memory_file() {
  return must_open(::memfd_create("output", MFD_CLOEXEC), "memfd_create");
}

std::string contents(const UniqueFd& fd) {
  std::string text;
  std::array<char, 4096> bytes{};
  ssize_t got = 0;
  while ((got = ::pread(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(text.size()))) > 0) {
    text.append(bytes.data(), static_cast<std::size_t>(got));
  }
  return text;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (const std::string& text : strings) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// In the new process there is nobody to tell but by the exit status.
void must(bool done) {
  if (!done) ::_exit(126);
}

pid_t start(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
            const UniqueFd& out, const UniqueFd& err, const std::function<void()>& before) {
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> envp = pointers(environment);
  const pid_t pid = ::fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid == 0) {
    must(::dup2(out.get(), STDOUT_FILENO) >= 0 && ::dup2(err.get(), STDERR_FILENO) >= 0);
    if (before) before();
    (void)::execve(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  return pid;
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return vamdgpu::shell_status(status);
}

}  // namespace

Ended run_command(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                  const std::function<void()>& before) {
  const UniqueFd out = memory_file();
  const UniqueFd err = memory_file();
  const pid_t pid = start(arguments, environment, out, err, before);
  const int status = wait_for(pid);
  return {status, contents(out), contents(err)};
}

Ended run_on_terminal(const std::vector<std::string>& arguments, std::vector<std::string> environment,
                      const Terminal& terminal) {
  if (!terminal.kind.empty()) environment.push_back("TERM=" + terminal.kind);
  const UniqueFd out = memory_file();
  const UniqueFd screen = must_open(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), "posix_openpt");
  if (::grantpt(screen.get()) != 0 || ::unlockpt(screen.get()) != 0)
    throw std::system_error(errno, std::generic_category(), "unlockpt");
  UniqueFd err =
      must_open(::open(::ptsname(screen.get()), O_RDWR | O_NOCTTY | O_CLOEXEC), "open the terminal");
  struct termios mode {};
  struct winsize size {};
  size.ws_col = terminal.columns;
  if (::tcgetattr(err.get(), &mode) != 0)
    throw std::system_error(errno, std::generic_category(), "tcgetattr");
  ::cfmakeraw(&mode);  // bytes come as they were written
  if (::tcsetattr(err.get(), TCSANOW, &mode) != 0 || ::ioctl(err.get(), TIOCSWINSZ, &size) != 0)
    throw std::system_error(errno, std::generic_category(), "set up the terminal");
  const pid_t pid = start(arguments, environment, out, err, {});
  err.reset();
  std::string text;
  std::array<char, 4096> bytes{};
  ssize_t got = 0;
  // EIO: nobody has the terminal any more.
  while ((got = ::read(screen.get(), bytes.data(), bytes.size())) > 0 || (got < 0 && errno == EINTR))
    text.append(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  const int status = wait_for(pid);
  return {status, contents(out), text};
}

void refuse_system_call(int number, int error, std::initializer_list<test::ArgumentBits> arguments) {
  must(test::refuse_system_call(static_cast<unsigned>(number), static_cast<unsigned>(error), arguments));
}

void give_up_capabilities(const std::vector<int>& capabilities) {
  for (const int capability : capabilities) must(::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0);
}

void mount_over(const std::string& what, const std::string& where, bool read_only) {
  must(::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0);
  must(::mount(what.c_str(), where.c_str(), nullptr, MS_BIND, nullptr) == 0);
  if (read_only)
    must(::mount("none", where.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0);
}

bool may_mount() {
  return run_command({"/bin/true"}, {}, [] { mount_over("/proc", "/proc"); }).status == 0;
}

}  // namespace sluice::cli_test
