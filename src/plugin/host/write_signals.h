// SPDX-License-Identifier: MIT
// SIGXFSZ and SIGPIPE, which a write brings to the thread that writes: a file would be larger than
// RLIMIT_FSIZE (write(2), truncate(2); of io_uring the thread that submits or a worker of the kernel's, which
// blocks all signals), or nobody reads a pipe. CRIU ignores SIGPIPE and not SIGXFSZ, which would end it in
// one of our hooks without a line and with the queues stopped. The same writes give EFBIG and EPIPE, which
// say enough.
//
// A signal that the host handles or ignores is left alone. Threads of the plugin block every signal anyway.
#pragma once

#include <signal.h>

namespace sluice::plugin {

// For the time of a hook, in its thread. What the hook's own writes have brought is gone at its end; what
// somebody else has sent meanwhile acts then. Allocates nothing.
class WriteSignals {
 public:
  WriteSignals();
  ~WriteSignals();
  WriteSignals(const WriteSignals&) = delete;
  WriteSignals& operator=(const WriteSignals&) = delete;

 private:
  sigset_t taken_{};      // blocked or not before, and not pending
  sigset_t unblocked_{};  // by us, at the end
};

}  // namespace sluice::plugin
