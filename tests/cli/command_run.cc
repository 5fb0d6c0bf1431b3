// SPDX-License-Identifier: MIT
#include "command_run.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "machine.h"
#include "pipeline/unique_fd.h"
#include "support/refuse_system_call.h"

namespace sluice::cli_test {
namespace {

UniqueFd memory_file() {
  UniqueFd fd(::memfd_create("output", MFD_CLOEXEC));
  if (!fd) throw std::system_error(errno, std::generic_category(), "memfd_create");
  return fd;
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

}  // namespace

Ended run_command(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                  const std::function<void()>& before) {
  const UniqueFd out = memory_file();
  const UniqueFd err = memory_file();
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
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return {vamdgpu::shell_status(status), contents(out), contents(err)};
}

void refuse_system_call(int number, int error) {
  must(test::refuse_system_call(static_cast<unsigned>(number), static_cast<unsigned>(error)));
}

void give_up_capabilities(const std::vector<int>& capabilities) {
  for (const int capability : capabilities) must(::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0);
}

}  // namespace sluice::cli_test
