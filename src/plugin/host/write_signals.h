// SPDX-License-Identifier: MIT
// SIGXFSZ and SIGPIPE. A write sends them to the writing thread if a file would exceed RLIMIT_FSIZE
// (write(2), truncate(2)) or a pipe has no reader. With io_uring the writer is the thread that submits, or a
// kernel worker, which blocks all signals. CRIU ignores SIGPIPE but not SIGXFSZ, which would end it in one of
// our hooks without a log line and with the queues stopped. The same writes return EFBIG and EPIPE, which
// suffices.
//
// Signals that the host handles or ignores are left alone. The plugin's threads block every signal anyway.
#pragma once

#include <signal.h>

namespace sluice::plugin {

// During a hook, in its thread. Signals from the hook's own writes are discarded at its end; those sent by
// other processes meanwhile act then. Allocates nothing.
class WriteSignals {
 public:
  WriteSignals();
  ~WriteSignals();
  WriteSignals(const WriteSignals&) = delete;
  WriteSignals& operator=(const WriteSignals&) = delete;

 private:
  sigset_t taken_{};      // blocked or not before, but not pending
  sigset_t unblocked_{};  // by us, at the end
};

}  // namespace sluice::plugin
