// SPDX-License-Identifier: MIT
#include "plugin/restore/restore_main.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/format.h"
#include "drm/device.h"
#include "drm/target_file.h"
#include "plugin/contents/stats.h"
#include "proc/processes.h"

namespace sluice::plugin {

namespace {

constexpr auto kEndPatience = std::chrono::seconds(5);  // until all tasks of a restore that failed have ended
constexpr auto kEndPeriod = std::chrono::milliseconds(1);

void warn_of_no_server(const Error& error) {
  log_line(Level::Warning,
           formatted("tasks restore their GPU memory themselves, more slowly: {} [SL-R42]", error.what));
}

}  // namespace

RestoreMain::RestoreMain(const RestoreBasis& basis) : basis_(basis) {
  if (!basis.config.parallel || !host_has_post_forking()) return;
  auto server =
      ContentServer::make(basis.config, basis.plan.all_lanes(), basis.lifeline->vram(), basis.store);
  if (server) {
    server_ = std::move(*server);
    if (basis.chain) server_->follow(basis.chain->chain());
    server_->share(basis.plan.read_by_several);
  } else {
    warn_of_no_server(server.error());
  }
}

std::optional<int> RestoreMain::server() const {
  return server_ ? std::optional(server_->fdstore_id()) : std::nullopt;
}

void RestoreMain::start_server() {
  if (!server_) return;
  if (const auto started = server_->start(); !started) warn_of_no_server(started.error());
}

Result<Answer> RestoreMain::resume(int pid) {
  if (!has_files()) return Answer();
  if (tree_killed_) {  // the reason was logged
    StoppedTree::kill_traced(pid);
    return Answer(-ECANCELED);
  }
  Result<kfd::ResumeOutcome> outcome = Error{ENOMEM, "out of memory"};
  try {
    outcome = resume_process(pid);
  } catch (const std::bad_alloc&) {  // no path from here may let the tree run
  } catch (...) {
    outcome = Error{EIO, "unexpected exception"};
  }
  if (!outcome) {
    tree_killed_ = true;
    if (tree_) tree_->kill();
    StoppedTree::kill_traced(pid);  // CRIU 3.17.1 also asks about helpers, which were reaped
    log_line(Level::Warning,
             "all processes of the tree were killed, because none may run without the others [SL-R28]");
    return std::move(outcome).error();
  }
  if (*outcome == kfd::ResumeOutcome::NotGpuProcess) return Answer();
  return Answer(0);
}

Result<kfd::ResumeOutcome> RestoreMain::resume_process(int pid) {
  if (!tree_) {
    SLUICE_TRY_ASSIGN(tree_, StoppedTree::find());
    SLUICE_TRY(tree_->hold());
    SLUICE_TRY(join_server());
    SLUICE_TRY(tree_->hold());
    SLUICE_TRY(check_vram());
    if (basis_.tree_match->ledger) basis_.tree_match->ledger->clear();  // all is allocated
  }
  SLUICE_TRY_ASSIGN(const kfd::KfdDevice own, kfd::KfdDevice::open(basis_.kfd_device));
  SLUICE_TRY_ASSIGN(const kfd::ResumeOutcome outcome, kfd::resume(own, pid));
  SLUICE_TRY(tree_->ready(pid));
  return outcome;
}

// Lanes have looked when they ended, some of them long ago.
Result<void> RestoreMain::check_vram() const {
  VramWatch& vram = basis_.lifeline->vram();
  for (const std::uint32_t minor : vram.render_minors()) {
    SLUICE_TRY_ASSIGN(const UniqueFd gpu, drm::open_render_node(minor));
    SLUICE_TRY_ASSIGN(const std::uint32_t losses, drm::vram_losses(gpu.get()));
    SLUICE_TRY(vram.look(minor, losses));
  }
  return {};
}

Result<void> RestoreMain::join_server() {
  if (!server_) return {};
  joined_ = true;
  Result<void> joined = server_->join([](const std::string& line) { log_line(Level::Info, line); });
  log_lines(server_->take_log_lines());
  if (joined) {
    for (const ContentServer::Finished& file : server_->take_finished()) {
      log_summaries(Direction::Restore, file.gpus);
      write_stats(Direction::Restore, file.id, file.times, file.gpus, basis_.config, basis_.store);
    }
  }
  return joined;
}

Result<void> RestoreMain::finish(int ret) {
  Result<void> resumed = ret >= 0 ? check_resumed() : Result<void>();
  Result<void> joined = join_unasked();
  if (ret < 0) await_end_of_tasks();
  SLUICE_TRY(std::move(resumed));
  return joined;
}

// CRIU asks no further plugin after one has answered RESUME_DEVICES_LATE.
Result<void> RestoreMain::check_resumed() const {
  if (!has_files() || tree_ || tree_killed_) return {};
  const auto tasks = proc::descendants(getpid());
  if (tasks) {
    for (const pid_t task : *tasks) (void)kill(task, SIGKILL);
  }
  return Error{
      EPROTO,
      "CRIU let the processes run without asking for their queues, perhaps because another plugin answers "
      "RESUME_DEVICES_LATE; criu's children were killed, kill what is left of the tree [SL-R29]"};
}

Result<void> RestoreMain::join_unasked() {
  if (!server_ || joined_) return {};
  server_->cancel();  // nothing is left to wait for: resume() would have joined what was needed
  Result<void> joined = join_server();
  if (!joined && joined.error().err == ECANCELED) return {};
  return joined;
}

// CRIU does not wait for them. Once they have ended, their GPU memory is free for another try. SIGCHLD should
// also come here. CRIU's handler calls strsignal(), which hangs if it interrupts the main process' exit while
// libc has its locales locked (seen with 4.2.1, once in a thousand).
// CRIU has other children, which live until it ends: cgroupd, since 3.18.
void RestoreMain::await_end_of_tasks() const {
  auto tasks = proc::descendants(getpid());
  if (!tasks) return;  // unreached: a race
  std::erase_if(*tasks, [](pid_t task) { return !proc::is_ending(task); });
  const auto deadline = std::chrono::steady_clock::now() + kEndPatience;
  for (;;) {
    std::erase_if(*tasks, [](pid_t task) { return proc::has_ended(task); });
    if (tasks->empty() || std::chrono::steady_clock::now() >= deadline) break;  // unreached: a race
    std::this_thread::sleep_for(kEndPeriod);
  }
  for (const pid_t task : *tasks) {  // unreached: no test
    log_line(
        Level::Warning,
        formatted(
            "process {} of the failed restore has not ended yet, so its GPU memory is not free; wait for "
            "its end [SL-R30]",
            task));
  }
}

}  // namespace sluice::plugin
