// SPDX-License-Identifier: MIT
// An ioctl that this program answers in place of the kernel, once: of criu, and of all that it starts or
// restores. seccomp hands such calls to this program, which lets the kernel do the others.
//
// Source: seccomp_unotify(2). Failures throw std::system_error.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <thread>

#include "base/unique_fd.h"

namespace sluice::vm_test {

class AnsweredIoctl {
 public:
  // A call: who makes it, and the address of its argument there.
  struct Call {
    pid_t thread = 0;
    std::uint64_t argument = 0;
  };
  // Is asked on a thread of this object. 0 or a negative errno; nothing: the kernel does the call.
  using Answer = std::function<std::optional<int>(const Call&)>;

  AnsweredIoctl(std::uint32_t request, Answer answer);
  // From here on such a call of a watched process fails with ENOSYS.
  ~AnsweredIoctl();
  AnsweredIoctl(const AnsweredIoctl&) = delete;
  AnsweredIoctl& operator=(const AnsweredIoctl&) = delete;

  // For Launch::prepare of one process: it is watched, and whatever it starts.
  void watch_this_process() const;

 private:
  void serve() const;

  std::uint32_t request_;
  Answer answer_;
  UniqueFd ours_, theirs_;  // a pair of sockets: over it comes the descriptor that tells of calls
  UniqueFd end_;            // an event: this object goes
  std::thread server_;
};

// KFD refuses a CRIU operation, after it has carried out `before` of them.
AnsweredIoctl refused_criu_op(std::uint32_t op, int error, unsigned before = 0);

// A job of the GPU has ended with an error: the first whose fence is read.
AnsweredIoctl failed_fence(int error);

}  // namespace sluice::vm_test
