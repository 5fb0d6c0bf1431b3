// SPDX-License-Identifier: MIT
// The restore stage in CRIU's main process: starts the content server, resumes the tasks, and makes sure that
// no task runs with wrong memory. Its only thread.
#pragma once

#include <memory>
#include <optional>

#include "base/result.h"
#include "kfd/criu_ops.h"
#include "plugin/host/criu_host.h"
#include "plugin/host/stopped_tree.h"
#include "plugin/restore/basis/restore_basis.h"
#include "plugin/restore/server/content_server.h"

namespace sluice::plugin {

class RestoreMain {
 public:
  // Makes the content server's socket if the host supports it. `basis` is borrowed.
  explicit RestoreMain(const RestoreBasis& basis);

  // The server's number in the host's fdstore, for tasks; none without a server.
  std::optional<int> server() const;

  // POST_FORKING: starts the content server, if there is one. Without it tasks restore themselves.
  void start_server();

  // RESUME_DEVICES_LATE: joins all contents at the first call, then starts the process' queues. On any
  // failure it kills the whole tree and starts nothing more, because CRIU ignores this hook's errors. The
  // tree also dies if CRIU does before all are started. Nothing if it is no GPU process, or none of the tree
  // is.
  Result<Answer> resume(int pid);

  // exit(): joins what still runs. A failure that resume() has reported is not reported again. `ret` < 0: the
  // restore has failed, and CRIU has killed its tasks; waits for a while until they have ended. Else: EPROTO,
  // and the processes are killed, if resume() was never called.
  Result<void> finish(int ret);

 private:
  Result<kfd::ResumeOutcome> resume_process(int pid);
  Result<void> check_vram() const;
  Result<void> join_server();
  Result<void> join_unasked();
  Result<void> check_resumed() const;
  void await_end_of_tasks() const;
  bool has_files() const { return basis_.lifeline->has_files(); }

  const RestoreBasis& basis_;
  std::unique_ptr<ContentServer> server_;
  bool joined_ = false;              // resume() knows, and has reported, the result of the server's contents
  std::optional<StoppedTree> tree_;  // from the first resume() on
  bool tree_killed_ = false;
};

}  // namespace sluice::plugin
