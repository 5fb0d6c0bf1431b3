// SPDX-License-Identifier: MIT
#include "plugin/dump/carry/carrier.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "images/files/files.h"
#include "pipeline/store/file_writer.h"
#include "plugin/contents/local_machine.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {

void Carrier::load(const std::vector<PlannedFile>& files, std::vector<std::vector<LaneContents>> lanes) {
  shared_.sums.method = basis_.sums;
  if (basis_.parent.chain) shared_.sums.parent = &basis_.parent.chain->parent();
  shared_.sums.clone_block_bytes = basis_.clone_block_bytes;
  std::map<std::uint32_t, std::size_t> followers;
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (LaneContents& lane : lanes[i]) {
      lane.numa_node = numa_node_of_render_minor(lane.render_minor);
      for (const PlannedLeader& leader : lane.leaders) ++followers[leader.lane];
    }
    File& file = files_.emplace_back();
    file.flows = !files[i].is_alias();
    file.times.began_ns = files[i].began_ns;
    file.waiting = std::move(lanes[i]);
  }
  for (const auto& [lane, count] : followers) shared_.replicas.expect(lane, count);
}

// One way, contents share the staging memory with those that will run at the same time.
Result<void> Carrier::start(std::optional<std::size_t> wanted, int id) {
  const bool one_way = basis_.store.one_way();
  const bool all_flow = one_way || basis_.config.parallel;
  std::vector<std::size_t> waiting;
  for (std::size_t i = 0; i < files_.size(); ++i)
    if (files_[i].flows && !is_started(i)) waiting.push_back(i);
  const auto drop_others = [&] {
    std::erase_if(waiting, [wanted](std::size_t one) { return wanted && one != *wanted; });
  };
  if (!all_flow) drop_others();
  if (waiting.empty()) return {};
  if (!all_flow || !std::exchange(all_share_, true)) share_staging(waiting);
  if (one_way) drop_others();
  for (const std::size_t one : waiting) {
    if (one != wanted && !has_room(files_[one])) continue;
    SLUICE_TRY(check_stopped(shared_));
    SLUICE_TRY(start_file(one, one_way ? std::optional(id) : std::nullopt));
  }
  return {};
}

// Others would wait for staging memory (LaneRoom), each in its own thread.
bool Carrier::has_room(const File& file) const {
  return std::all_of(file.waiting.begin(), file.waiting.end(), [this](const LaneContents& lane) {
    const auto lanes = lanes_.find(lane.render_minor);
    return lanes == lanes_.end() || lanes->second < basis_.config.lanes_at_once();
  });
}

void Carrier::share_staging(const std::vector<std::size_t>& sharers) {
  std::map<std::uint32_t, unsigned> lanes_by_minor;
  for (const std::size_t file : sharers) {
    for (const LaneContents& lane : files_[file].waiting) ++lanes_by_minor[lane.render_minor];
  }
  std::size_t lanes = 0;
  for (const auto& [minor, of_gpu] : lanes_by_minor)
    lanes += std::min<std::size_t>(of_gpu, basis_.config.lanes_at_once());
  shared_.lanes = std::max<std::size_t>(lanes, 1);
  for (const std::size_t file : sharers) {
    for (LaneContents& lane : files_[file].waiting) lane.sharers = lanes_by_minor[lane.render_minor];
  }
}

// `id`: if files have their final names from the start.
Result<void> Carrier::start_file(std::size_t number, std::optional<int> id) {
  File& file = files_[number];
  file.started = true;
  std::vector<LaneFiles> names;
  for (const LaneContents& lane : file.waiting) {
    file.minors.push_back(lane.render_minor);
    ++lanes_[lane.render_minor];
    // The host asks for files in the order of the plan, and waits for each.
    names.push_back(id ? LaneFiles{lane.pages.pages_names(*id), 0}
                       : LaneFiles{take_working_names(number, lane.pages), static_cast<unsigned>(number)});
    // A pre-dump that ends too early leaves no files. A dump destroys its lanes, which remove theirs.
    for (const std::string& name : names.back().names) {
      if (basis_.policy.job_runs) images_.add(temporary_name_of(name));
    }
  }
  SLUICE_TRY_ASSIGN(file.job, ContentsJob::dump(std::exchange(file.waiting, {}), std::move(names),
                                                basis_.config, basis_.dump_id, shared_));
  return {};
}

// A file of the same GPU from an earlier dump, to be overwritten, or unused names.
std::vector<std::string> Carrier::take_working_names(std::size_t number, const PagesSet& pages) {
  if (!pages.drm_minor) {
    if (auto old = images_.take_old_pages(pages_image_ending(pages.gpu_id))) return {std::move(*old)};
  }
  std::vector<std::string> names;
  for (std::size_t file = 0; file < pages.file_count(); ++file)
    names.push_back(pages.unnamed_pages_name(static_cast<unsigned>(number), pages.bos[file].number));
  return names;
}

Result<void> Carrier::join(std::size_t number, int id) {
  File& file = files_[number];
  file.times.joined_ns = shared_.world.now_ns();
  Result<void> done = file.job->wait([](const std::string& line) { log_line(Level::Info, line); });
  log_lines(file.job->take_log_lines());
  SLUICE_TRY(done);
  for (const std::uint32_t minor : std::exchange(file.minors, {})) --lanes_[minor];
  for (std::string& name : file.job->image_names(id)) images_.add(std::move(name));
  return file.job->commit(id);
}

void Carrier::note_stats(std::size_t number, int id) {
  File& file = files_[number];
  file.times.ended_ns = shared_.world.now_ns();
  for (const GpuOutcome& gpu : file.job->outcomes()) {
    totals_.bytes += gpu.bytes;
    totals_.io_bytes += gpu.io_bytes;
    totals_.skipped_bytes += gpu.skipped_bytes;
  }
  log_summaries(Direction::Dump, file.job->outcomes());
  stats_.push_back({id, file.times, file.job->outcomes()});
  file.job.reset();
}

void Carrier::write_stats(std::uint64_t frozen_ns) {
  const bool is_predump = basis_.policy.job_runs;
  if (frozen_ns != 0 && !is_predump)
    log_line(Level::Info, formatted("GPU queues were paused for {} ms", frozen_ns / 1'000'000));
  for (Stats& file : stats_) {
    file.times.frozen_ns = frozen_ns;
    file.times.is_predump = is_predump;
    plugin::write_stats(Direction::Dump, file.id, file.times, file.gpus, basis_.config, basis_.store);
  }
}

}  // namespace sluice::plugin
