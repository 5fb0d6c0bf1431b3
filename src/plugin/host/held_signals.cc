// SPDX-License-Identifier: MIT
#include "plugin/host/held_signals.h"

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <new>

namespace sluice::plugin {

namespace {

constexpr auto kPatience = std::chrono::seconds(5);
constexpr auto kTimeToUnpause = std::chrono::milliseconds(500);  // of exit(), before a second signal acts
constexpr rlim_t kCpuSecondsToUndo = 2;

// A held signal acts after main(). By then CRIU has undone its changes to tasks and network, which some
// versions do after exit() of plugins, and has answered the dump's caller. Not in a process that CRIU has
// forked.
struct SignalAtTheEnd {
  pid_t maker = 0;
  int signal = 0;
  ~SignalAtTheEnd() {
    if (signal != 0 && getpid() == maker) (void)raise(signal);
  }
} signal_at_the_end;

// CRIU closes a plugin right after exit(), before all of that, so the module must stay loaded. If the loader
// has no memory, it is unloaded.
void keep_module_loaded() {
  Dl_info module{};
  if (dladdr(&signal_at_the_end, &module) != 0)
    (void)dlopen(module.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

int take_pending(const sigset_t& set) {
  const timespec now{};
  return sigtimedwait(&set, nullptr, &now);
}

// Whether the default action ends the process (signal(7)), the signal reports no fault, and we may hold it.
bool may_be_held(int number) {
  constexpr int kOthers[] = {
      SIGKILL, SIGSTOP,                                      // cannot be held
      SIGCHLD, SIGCONT, SIGURG,  SIGWINCH,                   // do nothing
      SIGTSTP, SIGTTIN, SIGTTOU,                             // stop the process
      SIGSEGV, SIGBUS,  SIGILL,  SIGFPE,   SIGTRAP, SIGSYS,  // faults
      SIGALRM, SIGXFSZ, SIGPIPE,                             // CRIU's own; errors of writes
  };
  return std::find(std::begin(kOthers), std::end(kOthers), number) == std::end(kOthers);
}

// A signal whose sender will not wait. SIGHUP and SIGXCPU repeat by themselves.
bool is_wish(int number) {
  return number != SIGHUP && number != SIGXCPU;
}

// The signals that would end the process. False: none.
bool deadly_signals(sigset_t& set) {
  sigset_t blocked;
  (void)pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  (void)sigemptyset(&set);
  bool any = false;
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action {};
    if (!may_be_held(number) || sigaction(number, nullptr, &action) != 0 || action.sa_handler != SIG_DFL)
      continue;
    if (sigismember(&blocked, number) != 0) continue;  // unreached: a guard
    (void)sigaddset(&set, number);
    any = true;
  }
  return any;
}

}  // namespace

void HeldSignals::hold() {
  const bool held_since_then = caught_ != 0;
  if (!held_since_then) {
    if (!deadly_signals(held_)) return;  // unreached: a guard
    (void)pthread_sigmask(SIG_BLOCK, &held_, &before_);
  }
  if (start_watcher()) {
    lower_cpu_limit();
  } else if (!held_since_then) {
    (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
}

void HeldSignals::lower_cpu_limit() {
  rlimit limit{};
  if (cpu_limit_ || getrlimit(RLIMIT_CPU, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  if (limit.rlim_max > limit.rlim_cur + kCpuSecondsToUndo || limit.rlim_max <= kCpuSecondsToUndo) return;
  const rlimit lower{limit.rlim_max - kCpuSecondsToUndo, limit.rlim_max};
  if (setrlimit(RLIMIT_CPU, &lower) == 0) cpu_limit_ = limit;
}

void HeldSignals::raise_cpu_limit() {
  if (!cpu_limit_) return;
  (void)setrlimit(RLIMIT_CPU, &*cpu_limit_);
  cpu_limit_.reset();
}

// False: no descriptors, thread or memory for it.
bool HeldSignals::start_watcher() {
  if (!ended_) ended_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const int signals = signalfd(signals_.get(), &held_, SFD_CLOEXEC | SFD_NONBLOCK);
  if (!signals_) signals_.reset(signals);
  if (!ended_ || signals < 0) return false;
  try {
    auto watcher = LaneThread::start("sluice-signals", [this]() -> Result<void> {
      watch();
      return {};
    });
    if (!watcher) return false;
    watcher_.emplace(std::move(*watcher));
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// In a thread that blocks all signals.
void HeldSignals::watch() {
  pollfd files[] = {{ended_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
  // A second signal may have come between two hooks, when nothing hung.
  if (caught_ != 0 && poll(files, 1, static_cast<int>(kTimeToUnpause.count())) > 0) return;
  auto patience_ends = std::chrono::steady_clock::now() + kPatience;  // if one was caught before
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(patience_ends - std::chrono::steady_clock::now());
    const bool patient = left.count() > 0;
    const bool waits_for_another = caught_ == 0 || (!patient && only_late());
    const int wait_ms = patient ? static_cast<int>(left.count()) : 0;
    const int ready = poll(files, 2, waits_for_another ? -1 : wait_ms);
    if (files[0].revents != 0) return;
    signalfd_siginfo info{};
    const bool came = ready > 0 && read(signals_.get(), &info, sizeof info) == sizeof info;
    const int number = static_cast<int>(info.ssi_signo);
    if (came && (caught_ == 0 || (!is_wish(caught_) && is_wish(number)))) {
      caught_ = number;
      stop_ = !too_late_;
      patience_ends = std::chrono::steady_clock::now() + kPatience;
    } else if (came ? is_wish(number) && !(patient && only_late()) : ready == 0 && !only_late()) {
      (void)raise(caught_);
      (void)pthread_sigmask(SIG_UNBLOCK, &held_, nullptr);  // the end of the process
    }
  }
}

// Without the watcher nobody takes a signal, so from here on nothing that could hang is called. The
// descriptors stay.
void HeldSignals::release() {
  if (!watcher_) return;
  (void)eventfd_write(ended_.get(), 1);
  (void)watcher_->join(LaneThread::Ring::None);
  watcher_.reset();
  eventfd_t written = 0;
  (void)eventfd_read(ended_.get(), &written);
  if (caught_ == 0) {  // perhaps after the watcher's last look
    const int late = take_pending(held_);
    if (late > 0) {
      caught_ = late;
      stop_ = !too_late_;
    }
  }
  if (caught_ != 0) return;
  raise_cpu_limit();
  (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<int> HeldSignals::caught() const {
  const int number = caught_;
  return number == 0 ? std::nullopt : std::optional(number);
}

HeldSignals::~HeldSignals() {
  if (caught_ == 0) return;
  raise_cpu_limit();
  if (!too_late_) {
    keep_module_loaded();
    signal_at_the_end.maker = getpid();
    signal_at_the_end.signal = caught_;
  }
  while (take_pending(held_) > 0) {  // a second signal that had nothing to wait for
  }
  (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace sluice::plugin
