// SPDX-License-Identifier: MIT
// A pid namespace as made by `unshare --pid --fork`: /proc is the outer one's. For tests without threads of
// their own.
#pragma once

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace sluice::test {

inline constexpr int kNoNamespace = 77;  // exit status

// The exit status of `body`, run as the first process of a pid namespace; kNoNamespace if none can be made.
inline int in_new_pid_namespace(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWPID) != 0) ::_exit(kNoNamespace);
    const pid_t first = ::fork();
    if (first == 0) ::_exit(body());
    int status = 0;
    ::_exit(::waitpid(first, &status, 0) == first && WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}

}  // namespace sluice::test
