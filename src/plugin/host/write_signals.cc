// SPDX-License-Identifier: MIT
#include "plugin/host/write_signals.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

namespace sluice::plugin {

namespace {

constexpr int kOfWrites[] = {SIGXFSZ, SIGPIPE};

// The kernel sends them in the writer's name (send_sig() without a siginfo: SI_USER, with its pid, or 0 if it
// had no memory for that).
bool is_own(const siginfo_t& info) {
  return info.si_code == SI_USER && (info.si_pid == getpid() || info.si_pid == 0);
}

}  // namespace

WriteSignals::WriteSignals() {
  (void)sigemptyset(&taken_);
  (void)sigemptyset(&unblocked_);
  sigset_t pending, before;
  (void)sigpending(&pending);
  for (const int number : kOfWrites) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) continue;
    if (sigismember(&pending, number) == 0) (void)sigaddset(&taken_, number);
  }
  (void)pthread_sigmask(SIG_BLOCK, &taken_, &before);
  for (const int number : kOfWrites) {
    if (sigismember(&taken_, number) != 0 && sigismember(&before, number) == 0)
      (void)sigaddset(&unblocked_, number);
  }
}

WriteSignals::~WriteSignals() {
  const timespec now{};
  siginfo_t info{};
  int of_others = 0;
  for (int number = 0; (number = sigtimedwait(&taken_, &info, &now)) > 0;) {
    if (!is_own(info)) of_others = number;
  }
  if (of_others != 0) (void)raise(of_others);
  (void)pthread_sigmask(SIG_UNBLOCK, &unblocked_, nullptr);
}

}  // namespace sluice::plugin
