// SPDX-License-Identifier: MIT
#include "plugin/dump/survey/queue_losses.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "base/clock.h"
#include "base/format.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {

namespace {

// Each stop costs the kernels time, so the turns in which they run get longer.
constexpr std::uint64_t kFirstTurnNs = 10'000'000;
constexpr std::uint64_t kLongestTurnNs = 200'000'000;
// A signal is noticed after this.
constexpr std::uint64_t kLookNs = 10'000'000;

bool would_lose_waves(const KfdSurvey::All& files) {
  return std::any_of(files.begin(), files.end(), [](const auto& file) { return file->losses().waves != 0; });
}

Result<void> sleep_until(std::uint64_t end_ns, const SharedByJobs& shared) {
  for (std::uint64_t now = shared.world.now_ns(); now < end_ns; now = shared.world.now_ns()) {
    SLUICE_TRY(check_stopped(shared));
    const timespec look{0, static_cast<long>(std::min(end_ns - now, kLookNs))};
    (void)::nanosleep(&look, nullptr);
  }
  return {};
}

// The kernels of one process may wait for those of another, so all run at the same time.
Result<void> let_kernels_end(const KfdSurvey::All& files, std::chrono::seconds most, const StoppedJob& job) {
  const auto most_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(most).count());
  const std::uint64_t began_ns = job.shared.world.now_ns();
  for (std::uint64_t turn_ns = kFirstTurnNs; would_lose_waves(files);
       turn_ns = std::min(2 * turn_ns, kLongestTurnNs)) {
    const std::uint64_t now = job.shared.world.now_ns();
    if (now >= began_ns + most_ns) return {};
    SLUICE_TRY(job.sessions.let_run());
    SLUICE_TRY(sleep_until(std::min(now + turn_ns, began_ns + most_ns), job.shared));
    for (const auto& file : files) SLUICE_TRY(file->stop());
  }
  log_line(Level::Info, formatted("kernels were running, and ended within {} ms",
                                  (job.shared.world.now_ns() - began_ns) / 1'000'000));
  return {};
}

// `waited`: what a refusal may advise.
Result<void> check_losses(const KfdSurvey& file, bool waited, const DumpBasis& basis) {
  const std::string& name = file.name();
  const kfd::QueueLosses& losses = file.losses();
  if (losses.stack_words != 0) {
    log_line(
        Level::Warning,
        formatted("{} has {} queues with words on a control stack that this kernel does not save; if they "
                  "belong to running kernels, those never end after a restore [SL-D86]",
                  name, losses.stack_words));
  }
  if (losses.gws_values != 0) {
    log_line(
        Level::Warning,
        formatted("{} has {} queues whose running kernels may use the GPU's global wave sync, whose values "
                  "the kernel does not save; kernels that wait there may never end after a restore [SL-D87]",
                  name, losses.gws_values));
  }
  if (losses.counters != 0) {
    log_line(
        Level::Warning,
        formatted("{} has {} queues whose kernels a profiler counts, which the kernel does not save; stop "
                  "the profiler before the dump, or start it again after the restore [SL-D89]",
                  name, losses.counters));
  }
  if (losses.several_xccs != 0 && basis.config.lost_waves != settings::LostWaves::Warn) {
    return Error{EINVAL,
                 formatted("{} has {} queues of a GPU with several dies (XCCs), which this kernel does not "
                           "save and restore on all of them; use the partition mode CPX [SL-D97]",
                           name, losses.several_xccs)};
  }
  if (losses.several_xccs != 0) {
    log_line(Level::Warning,
             formatted("{} has {} queues of a GPU with several dies (XCCs), which this kernel does not "
                       "save and restore on all of them; SLUICE_LOST_WAVES=warn allows the dump [SL-D98]",
                       name, losses.several_xccs));
  }
  if (losses.waves == 0) return {};
  if (basis.config.lost_waves == settings::LostWaves::Warn) {
    log_line(Level::Warning,
             formatted("{} has {} queues with running kernels whose waves this kernel does not save: after a "
                       "restore they never end; SLUICE_LOST_WAVES=warn allows it [SL-D88]",
                       name, losses.waves));
    return {};
  }
  return Error{EBUSY,
               formatted("{} has {} queues with running kernels whose waves this kernel does not save, "
                         "so they would never end after a restore; {} [SL-D85]",
                         name, losses.waves,
                         waited ? "dump between kernels, or raise SLUICE_WAVES_TIMEOUT"
                                : "dump between kernels, or with CRIU 4.0 or newer and "
                                  "SLUICE_PARALLEL=on, which can wait for their end")};
}

}  // namespace

Result<void> settle_losses(const KfdSurvey::All& files, const KernelWait& wait, const DumpBasis& basis,
                           const StoppedJob& job) {
  if (wait.unread && would_lose_waves(files)) SLUICE_TRY(let_kernels_end(files, wait.most, job));
  for (const auto& file : files) SLUICE_TRY(check_losses(*file, wait.unread, basis));
  return {};
}

}  // namespace sluice::plugin
