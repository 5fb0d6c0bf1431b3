// SPDX-License-Identifier: MIT
#include "plugin/held_signals.h"

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <new>

namespace sluice::plugin {

namespace {

constexpr auto kPatience = std::chrono::seconds(5);
constexpr auto kTimeToUnpause = std::chrono::milliseconds(500);  // of exit(), before a second signal acts

// What was held acts behind main(): CRIU has undone by then what it has done to the tasks and to the network,
// which some versions do after exit() of plugins, and has told whoever asked for the dump. Not in a process
// that CRIU has forked.
struct SignalAtTheEnd {
  pid_t maker = 0;
  int signal = 0;
  ~SignalAtTheEnd() {
    if (signal != 0 && getpid() == maker) (void)raise(signal);
  }
} signal_at_the_end;

// CRIU closes a plugin right behind its exit(), with all of that still to do: the end of this module must not
// be there. Where the loader has no memory, it is.
void keep_module_loaded() {
  Dl_info module{};
  if (dladdr(&signal_at_the_end, &module) != 0)
    (void)dlopen(module.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

int take_pending(const sigset_t& set) {
  const timespec now{};
  return sigtimedwait(&set, nullptr, &now);
}

// Those that would end the process. False: none.
bool deadly_signals(sigset_t& set) {
  sigset_t blocked;
  (void)pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  (void)sigemptyset(&set);
  bool any = false;
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) continue;
    if (sigismember(&blocked, number) != 0) continue;
    (void)sigaddset(&set, number);
    any = true;
  }
  return any;
}

}  // namespace

void HeldSignals::hold() {
  const bool held_since_then = caught_ != 0;
  if (!held_since_then) {
    if (!deadly_signals(held_)) return;
    (void)pthread_sigmask(SIG_BLOCK, &held_, &before_);
  }
  if (!start_watcher() && !held_since_then) (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

// False: no descriptors, no thread, or no memory for it.
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

// In a thread that blocks every signal.
void HeldSignals::watch() {
  pollfd files[] = {{ended_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
  // A second one may have come between two hooks, when nothing hung.
  if (caught_ != 0 && poll(files, 1, static_cast<int>(kTimeToUnpause.count())) > 0) return;
  for (;;) {
    const auto patience = std::chrono::milliseconds(kPatience).count();
    const int ready = poll(files, 2, caught_ == 0 ? -1 : static_cast<int>(patience));
    if (files[0].revents != 0) return;
    signalfd_siginfo info{};
    const bool came = ready > 0 && read(signals_.get(), &info, sizeof info) == sizeof info;
    if (came && (caught_ == 0 || caught_ == SIGHUP)) {  // what comes behind SIGHUP is the first again
      caught_ = static_cast<int>(info.ssi_signo);
      stop_ = !too_late_;
    } else if ((ready == 0 || (came && info.ssi_signo != SIGHUP)) && !(too_late_ && nothing_to_undo_)) {
      (void)raise(caught_);
      (void)pthread_sigmask(SIG_UNBLOCK, &held_, nullptr);  // the end of the process
    }
  }
}

// Without the watcher nobody takes a signal: nothing is called then that could hang. The descriptors stay.
void HeldSignals::release() {
  if (!watcher_) return;
  (void)eventfd_write(ended_.get(), 1);
  (void)watcher_->join(LaneThread::Ring::None);
  watcher_.reset();
  eventfd_t written = 0;
  (void)eventfd_read(ended_.get(), &written);
  if (caught_ == 0) {  // but perhaps behind the watcher's last look
    const int late = take_pending(held_);
    if (late > 0) {
      caught_ = late;
      stop_ = !too_late_;
    }
  }
  if (caught_ == 0) (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<int> HeldSignals::caught() const {
  const int number = caught_;
  return number == 0 ? std::nullopt : std::optional(number);
}

HeldSignals::~HeldSignals() {
  if (caught_ == 0) return;
  if (!too_late_) {
    keep_module_loaded();
    signal_at_the_end.maker = getpid();
    signal_at_the_end.signal = caught_;
  }
  while (take_pending(held_) > 0) {  // a second one that has had nothing to wait for
  }
  (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace sluice::plugin
