// SPDX-License-Identifier: MIT
#include "plugin/dump/contents/dump_contents.h"

#include <algorithm>

#include "base/format.h"
#include "images/files/files.h"
#include "pipeline/store/file_writer.h"
#include "plugin/contents/local_machine.h"

namespace sluice::plugin {

Result<void> DumpRun::look_for_parent() {
  SLUICE_TRY_ASSIGN(parent, find_parent(store, config));
  if (!parent.chain) return {};
  shared.parent = &parent.chain->parent();
  shared.clone_block_bytes = parent.clone_block_bytes;
  shared.sums = shared.parent->sum_method();
  config.reuse_files = false;  // an overwritten file has no holes, so it would not be smaller
  return {};
}

std::string DumpRun::name_of(const std::string& in_dump) const {
  if (is_predump) return predump_name(in_dump);
  return parent.chain && parent.clone_block_bytes == 0 ? chain_name(in_dump) : in_dump;
}

Result<void> DumpRun::save(const std::string& name, std::span<const std::uint8_t> payload) const {
  SLUICE_TRY(store.save(name, payload, config.sync));
  return config.sync ? store.sync() : Result<void>();
}

void DumpRun::write_stats() {
  if (frozen_ns != 0 && !is_predump)
    log_line(Level::Info, formatted("GPU queues were paused for {} ms", frozen_ns / 1'000'000));
  for (FileStats& file : stats) {
    file.times.frozen_ns = frozen_ns;
    file.times.is_predump = is_predump;
    plugin::write_stats(Direction::Dump, file.id, file.times, file.gpus, config, store);
  }
}

Result<void> check_stopped(const SharedByJobs& shared) {
  return shared.stopped ? Error{ECANCELED, "the dump was stopped; the line before this one says why [SL-D07]"}
                        : Result<void>();
}

bool share_any(const std::vector<pid_t>& left, const std::vector<pid_t>& right) {
  return std::find_first_of(left.begin(), left.end(), right.begin(), right.end()) != left.end();
}

bool DumpContents::has_room() const {
  return std::all_of(waiting_.begin(), waiting_.end(), [this](const LaneContents& lane) {
    const auto lanes = run_.lanes.find(lane.render_minor);
    return lanes == run_.lanes.end() || lanes->second < run_.config.lanes_at_once();
  });
}

Result<void> DumpContents::start(std::optional<int> id) {
  started_ = true;
  std::vector<LaneFiles> files;
  for (const LaneContents& lane : waiting_) {
    minors_.push_back(lane.render_minor);
    ++run_.lanes[lane.render_minor];
    // The host asks for files in the order in which they were begun, and waits for each.
    files.push_back(id ? LaneFiles{lane.pages.pages_names(*id), 0}
                       : LaneFiles{take_working_names(lane.pages), number_});
    // A pre-dump that ends too early leaves no files. A dump destroys its lanes, which remove theirs.
    for (const std::string& name : files.back().names) {
      if (run_.is_predump) run_.images.add(temporary_name_of(name));
    }
  }
  SLUICE_TRY_ASSIGN(job_, ContentsJob::dump(std::exchange(waiting_, {}), std::move(files), run_.config,
                                            run_.dump_id, run_.shared));
  return {};
}

// A file of the same GPU from an earlier dump, to be overwritten, or unused names.
std::vector<std::string> DumpContents::take_working_names(const PagesSet& pages) {
  if (!pages.drm_minor) {
    if (auto old = run_.images.take_old_pages(pages_image_ending(pages.gpu_id))) return {std::move(*old)};
  }
  std::vector<std::string> names;
  for (std::size_t file = 0; file < pages.file_count(); ++file)
    names.push_back(pages.unnamed_pages_name(number_, pages.bos[file].number));
  return names;
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

void DumpContents::note_stats(int id) {
  times_.ended_ns = run_.shared.world.now_ns();
  for (const GpuOutcome& gpu : job_->outcomes()) {
    run_.totals.bytes += gpu.bytes;
    run_.totals.io_bytes += gpu.io_bytes;
    run_.totals.skipped_bytes += gpu.skipped_bytes;
  }
  log_summaries(Direction::Dump, job_->outcomes());
  run_.stats.push_back({id, times_, job_->outcomes()});
  job_.reset();
}

}  // namespace sluice::plugin
