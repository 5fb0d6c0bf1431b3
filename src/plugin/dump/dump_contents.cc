// SPDX-License-Identifier: MIT
#include "plugin/dump/dump_contents.h"

#include <algorithm>

#include "images/files.h"
#include "plugin/contents/machine.h"
#include "plugin/host/image_store.h"

namespace sluice::plugin {

Result<void> DumpRun::save(const std::string& name, std::span<const std::uint8_t> payload) const {
  SLUICE_TRY(save_image(name, payload, config.sync));
  return config.sync ? sync_images() : Result<void>();
}

Result<void> check_stopped(const SharedByJobs& shared) {
  return shared.stopped ? Error{ECANCELED, "the dump was stopped"} : Result<void>();
}

bool share_any(const std::vector<pid_t>& left, const std::vector<pid_t>& right) {
  return std::find_first_of(left.begin(), left.end(), right.begin(), right.end()) != left.end();
}

bool DumpContents::has_room() const {
  return std::all_of(waiting_.begin(), waiting_.end(), [this](const GpuContents& gpu) {
    const auto lanes = run_.lanes.find(gpu.render_minor);
    return lanes == run_.lanes.end() || lanes->second < run_.config.lanes_at_once();
  });
}

Result<void> DumpContents::start(std::optional<int> id) {
  started_ = true;
  for (GpuContents& gpu : waiting_) {
    minors_.push_back(gpu.render_minor);
    ++run_.lanes[gpu.render_minor];
    if (id) {
      gpu.working_names = pages_names(*id, gpu);
      continue;
    }
    gpu.turn = number_;  // the host asks in the order in which files were begun, and waits for each
    if (!gpu.drm_minor) {
      gpu.working_names.push_back(take_working_name(gpu.gpu_id));
      continue;
    }
    for (const ContentBo& bo : gpu.bos)
      gpu.working_names.push_back(unnamed_drm_pages_image(number_, *gpu.drm_minor, bo.number));
  }
  SLUICE_TRY_ASSIGN(job_, ContentsJob::dump(image_dir_fd(), std::exchange(waiting_, {}), run_.config,
                                            run_.dump_id, run_.shared));
  return {};
}

// One of the GPU's of an earlier dump, to be written over, or one that no file has.
std::string DumpContents::take_working_name(std::uint32_t gpu_id) {
  const auto old = run_.images.take_old_pages(pages_image_ending(gpu_id));
  return old ? *old : unnamed_pages_image(number_, gpu_id);
}

Result<void> DumpContents::join(int id) {
  times_.joined_ns = run_.shared.world.now_ns();
  Result<void> done = job_->wait([](const std::string& line) { log_line(Level::Info, line); });
  log_lines(job_->take_log_lines());
  SLUICE_TRY(done);
  for (const std::uint32_t minor : std::exchange(minors_, {})) --run_.lanes[minor];
  for (std::string& name : job_->image_names(id)) run_.images.add(std::move(name));
  return job_->commit(id);
}

void DumpContents::write_stats(int id) {
  times_.ended_ns = run_.shared.world.now_ns();
  // Before there are such files: a failed dump removes them.
  run_.images.add(stats_name(Direction::Dump, id));
  run_.images.add(trace_name(Direction::Dump, id));
  plugin::write_stats(Direction::Dump, id, times_, job_->outcomes(), run_.config);
  job_.reset();
}

}  // namespace sluice::plugin
