// SPDX-License-Identifier: MIT
#include "plugin/restore/task/task_contents.h"

#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/unique_fd.h"
#include "plugin/contents/contents_job.h"
#include "plugin/contents/local_machine.h"
#include "plugin/contents/stats.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {

LaneContents TaskContents::lane(PagesSet pages, std::vector<UniqueFd>& dmabufs, const kfd::Node& gpu,
                                std::uint32_t source_minor) const {
  LaneContents contents(std::move(pages), dmabufs, gpu.drm_render_minor);
  contents.numa_node = numa_node_of_render_minor(gpu.drm_render_minor);
  contents.sharers = basis_.plan.lanes_on(source_minor);
  return contents;
}

Result<void> TaskContents::fill(ContentRequest request) {
  if (request.lanes.empty()) return {};
  if (server_) {
    const Result<void> handed = hand_to_server(request);
    if (handed) return {};
    SLUICE_TRY(basis_.lifeline->check());
    log_line(
        Level::Warning,
        formatted("file {}: the content server did not take its GPU memory, so this task restores it itself: "
                  "{} [SL-R40]",
                  request.id, handed.error().what));
  }
  return fill_here(std::move(request));
}

Result<void> TaskContents::hand_to_server(const ContentRequest& request) const {
  const UniqueFd socket(fdstore_get(*server_));
  if (!socket) return make_error(EBADF, "get the socket from CRIU's fdstore");
  return hand_over(socket.get(), request);
}

// Not in criu's own pid namespace, which other processes use, too: we must not move their numbers. If it
// fails, the restore mostly succeeds anyway.
std::optional<ThreadNumbers::Raised> TaskContents::raise_thread_numbers() const {
  const ino_t its = pid_namespace(proc_fd(), "self/ns/pid");
  if (its == 0 || its == basis_.main_pid_namespace) return std::nullopt;
  auto raised = basis_.thread_numbers->raise(proc_fd());
  if (raised) return std::move(*raised);
  // unreached: no test
  log_line(Level::Warning, formatted("threads that restore GPU memory may take thread numbers of the tree: "
                                     "{}; if CRIU cannot create a thread "
                                     "(-17), restore again [SL-R41]",
                                     raised.error().what));
  return std::nullopt;  // unreached: no test
}

Result<void> TaskContents::fill_here(ContentRequest request) {
  const std::optional<ThreadNumbers::Raised> raised = raise_thread_numbers();
  SharedByJobs shared(basis_.lifeline->vram(), basis_.store);
  const std::uint64_t began_ns = shared.world.now_ns();
  shared.lanes = basis_.plan.all_lanes();
  shared.read_by_several = basis_.plan.read_by_several;
  if (request.lanes.size() == shared.lanes) shared.readers = std::make_unique<SharedReaders>();
  shared.warned.unverified = unverified_said_;
  std::vector<UniqueFd> directories;
  if (basis_.chain) {
    SLUICE_TRY_ASSIGN(directories, basis_.chain->directories_in_task());
    shared.parents.chain = &basis_.chain->chain();
    for (const UniqueFd& directory : directories) shared.parents.directories.push_back(directory.get());
  }
  SLUICE_TRY_ASSIGN(
      const std::unique_ptr<ContentsJob> job,
      ContentsJob::restore(request.id, std::move(request.lanes), basis_.config, request.dump_id, shared));
  job->begin();
  const Result<void> done = job->wait([](const std::string& line) { log_line(Level::Info, line); });
  log_lines(job->take_log_lines());
  unverified_said_ = shared.warned.unverified;
  SLUICE_TRY(done);
  log_summaries(Direction::Restore, job->outcomes());
  write_stats(Direction::Restore, request.id, {began_ns, began_ns, shared.world.now_ns()}, job->outcomes(),
              basis_.config, basis_.store);
  return {};
}

}  // namespace sluice::plugin
