// SPDX-License-Identifier: MIT
// A lane's thread: everything a lane owns (ring, arena, GPU device) is made, used and destroyed in it.
//
// The thread blocks every signal, because the host's SIGCHLD and SIGALRM handlers must run in its main
// thread, where they interrupt its waits. It unshares CLONE_FS, so that neither it nor an io-wq worker makes
// the host's setns(CLONE_NEWNS) fail. start() returns after that.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/result.h"

namespace sluice {

// Move-only; the destructor joins. The thread exists until it is joined.
class LaneThread {
 public:
  enum class Ring { Had, None };

  // A running thread of whatever kind. The destructor joins, unless join() has.
  class Running {
   public:
    virtual ~Running() = default;
    virtual Result<void> join(Ring ring) = 0;
  };

  // Runs `body` in a new thread named `name` (at most 15 characters). An exception of `body` (std::bad_alloc)
  // becomes ENOMEM. On error `body` does not run. Errors: OwnThread's if no thread can be made; those of
  // unshare.
  static Result<LaneThread> start(const std::string& name, std::function<Result<void>()> body);

  explicit LaneThread(std::unique_ptr<Running> running) : running_(std::move(running)) {}

  // Waits for the end of the thread and, if it had a ring, of its io-wq workers, and returns the result of
  // `body`. Call at most once.
  Result<void> join(Ring ring = Ring::Had) { return running_->join(ring); }

 private:
  std::unique_ptr<Running> running_;
};

}  // namespace sluice
