// SPDX-License-Identifier: MIT
// Every signal that would end CRIU while it waits for a dump in one of our hooks: SIGTERM, Ctrl-C, SIGXCPU of
// a limit, and whatever else somebody may send it. CRIU has no handler for them: they would end it in the
// middle, and only it, the tracer, may let the queues of the processes run again. So they are held: contents
// stop, the hook fails, CRIU undoes its dump, queues run, and at the end of CRIU's process the signal acts.
//
// A signal whose action is not the default, or which the host has blocked, is the host's, and left alone. So
// are SIGALRM, by which CRIU bounds its own waits, and SIGXFSZ and SIGPIPE, which are errors
// (write_signals.h). What tells of a fault of the process itself (SIGSEGV, …) cannot be held, and SIGKILL
// neither.
//
// RLIMIT_CPU. The kernel sends SIGXCPU at the soft limit and each second after it, and SIGKILL at the hard
// one, without a word where both are the same, as `ulimit -t` sets them. Then the soft one is lower for the
// time of a hook: a dump that has that little left could not be undone later.
#pragma once

#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <optional>

#include "base/unique_fd.h"
#include "pipeline/lane_thread.h"

namespace sluice::plugin {

// One for a dump. Main thread.
class HeldSignals {
 public:
  // `stop` is borrowed, and set by a thread of this class as soon as a signal comes.
  explicit HeldSignals(std::atomic<bool>& stop) : stop_(stop) {}
  // What was held acts at the end of the process, for which the module stays loaded; another one that comes
  // before acts at once.
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  // While it lives signals are held; what has come by its end stays held. A second signal, or five seconds in
  // which it does not end, and the first one acts, whatever that leaves: who asked must not be kept for ever
  // by a device or a stream that hangs. SIGHUP is no second one, and none comes after it: shell and kernel
  // both send it when a terminal goes, and who ends a session sends it with SIGTERM. Neither is SIGXCPU,
  // which the kernel repeats. A hook that begins with one held, as exit() does, has half a second to let the
  // queues run first. Where there are no descriptors and no thread for that, nothing is held.
  class InHook {
   public:
    explicit InHook(HeldSignals& signals) : signals_(signals) { signals_.hold(); }
    ~InHook() { signals_.release(); }
    InHook(const InHook&) = delete;
    InHook& operator=(const InHook&) = delete;

   private:
    HeldSignals& signals_;
  };

  // The dump has succeeded, and the host is about to end its processes: one that comes now comes too late. It
  // stops nothing and does not act, for who reads a failure out of it would take the images for none.
  void set_too_late() { too_late_ = caught_ == 0; }

  // All queues run: nothing is left that could hang and leave them stopped, so no second signal and no five
  // seconds make one act that came too late.
  void set_nothing_to_undo() { nothing_to_undo_ = true; }

  // The signal, once one has come.
  std::optional<int> caught() const;

 private:
  void hold();
  bool start_watcher();
  void release();
  void watch();
  void lower_cpu_limit();
  void raise_cpu_limit();

  std::atomic<bool>& stop_;
  sigset_t held_{};
  sigset_t before_{};
  UniqueFd signals_, ended_;  // from the first hook on
  std::optional<LaneThread> watcher_;
  std::optional<rlimit> cpu_limit_;  // the host's, while a lower one counts
  std::atomic<int> caught_{0};
  std::atomic<bool> too_late_{false};
  std::atomic<bool> nothing_to_undo_{false};
};

}  // namespace sluice::plugin
