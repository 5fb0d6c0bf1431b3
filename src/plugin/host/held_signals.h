// SPDX-License-Identifier: MIT
// Holds every signal that would end CRIU during a dump in one of our hooks: SIGTERM, Ctrl-C, SIGXCPU of a
// limit and any other. CRIU has no handlers for them, so they would end it midway, and only CRIU, the tracer,
// can resume the processes' queues. When a held signal comes, contents stop, the hook fails, CRIU undoes its
// dump, and queues run. At the end of CRIU's process the signal acts.
//
// Signals that the host handles, ignores or blocks are left alone. So are SIGALRM, by which CRIU limits its
// own waits, and SIGXFSZ and SIGPIPE, which become errors (write_signals.h). Faults of the process itself
// (SIGSEGV, …) and SIGKILL cannot be held.
//
// RLIMIT_CPU: the kernel sends SIGXCPU at the soft limit and each second after it, and SIGKILL at the hard
// one. If both are equal, as `ulimit -t` sets them, there is no SIGXCPU. Then the soft limit is lowered
// during a hook, because a dump with that little time left could not be undone later.
#pragma once

#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <optional>

#include "base/unique_fd.h"
#include "pipeline/lane_thread.h"

namespace sluice::plugin {

// One per dump. Main thread.
class HeldSignals {
 public:
  // `stop` is borrowed; a thread of this class sets it as soon as a signal comes.
  explicit HeldSignals(std::atomic<bool>& stop) : stop_(stop) {}
  // A held signal acts at the end of the process, for which the module stays loaded; another that comes
  // before acts at once.
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  // Holds signals during its life; a signal that has come stays held afterwards. A second signal, or five
  // seconds in this state, makes the first act, whatever the consequences. A hung device or stream must not
  // block the sender for ever. SIGHUP never counts as a second one, and nothing after it does. Shell and
  // kernel both send it when a terminal closes, and a session's end sends it with SIGTERM. SIGXCPU does not
  // count either, because the kernel repeats it. A hook that begins with a signal held, as exit() does, first
  // has half a second to resume the queues. Without descriptors and a thread for this, nothing is held.
  class InHook {
   public:
    explicit InHook(HeldSignals& signals) : signals_(signals) { signals_.hold(); }
    ~InHook() { signals_.release(); }
    InHook(const InHook&) = delete;
    InHook& operator=(const InHook&) = delete;

   private:
    HeldSignals& signals_;
  };

  // The dump has succeeded, and the host is about to end its processes: a signal from now on is too late. It
  // stops nothing and does not act, because its exit status would make the caller discard valid images.
  void set_too_late() { too_late_ = caught_ == 0; }

  // All queues run: nothing can hang and leave them stopped. So of late signals only a second one acts, and
  // only if it comes five seconds after the first: what is left may take that long.
  void set_nothing_to_undo() { nothing_to_undo_ = true; }

  // The signal that has come, if any.
  std::optional<int> caught() const;

 private:
  void hold();
  bool start_watcher();
  void release();
  void watch();
  bool only_late() const { return too_late_ && nothing_to_undo_; }
  void lower_cpu_limit();
  void raise_cpu_limit();

  std::atomic<bool>& stop_;
  sigset_t held_{};
  sigset_t before_{};
  UniqueFd signals_, ended_;  // from the first hook on
  std::optional<LaneThread> watcher_;
  std::optional<rlimit> cpu_limit_;  // the host's, while a lower one is in force
  std::atomic<int> caught_{0};
  std::atomic<bool> too_late_{false};
  std::atomic<bool> nothing_to_undo_{false};
};

}  // namespace sluice::plugin
