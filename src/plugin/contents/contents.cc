// SPDX-License-Identifier: MIT
#include "plugin/contents/contents.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "base/units.h"
#include "drm/device.h"
#include "drm/sdma_copy.h"
#include "images/files.h"
#include "images/key.h"
#include "images/pages.h"
#include "pipeline/arena.h"
#include "pipeline/store/file_set.h"
#include "pipeline/store/pipe_store.h"
#include "pipeline/uring_reactor.h"
#include "plugin/host/image_store.h"

namespace sluice::plugin {

namespace {

constexpr int kNoId = -1;  // of a dump: the host says it later
constexpr auto kProgressPeriod = std::chrono::seconds(1);
constexpr auto kStopPeriod = std::chrono::milliseconds(50);  // how often wait() looks whether all is stopped
constexpr std::uint64_t kMostTraceEvents = std::uint64_t{1} << 18;  // of a lane

PagesSet pages_of(const GpuContents& gpu) {
  PagesSet set{gpu.gpu_id, gpu.drm_minor, {}, gpu.bo_table_digest, gpu.has_sums};
  set.bos.reserve(gpu.bos.size());
  for (const ContentBo& bo : gpu.bos) set.bos.push_back({bo.bytes, bo.va, bo.number});
  return set;
}

// What `call` answers, or what it has thrown. The words need no memory: that may be what is lacking.
template <class Call>
Result<void> caught(Call call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return Error{ENOMEM, "out of memory"};
  } catch (...) {
    return Error{EIO, "exception"};
  }
}

}  // namespace

std::vector<std::string> pages_names(int id, const GpuContents& gpu) {
  return pages_of(gpu).pages_names(id);
}

std::int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Everything of one lane. The members the lane's thread makes for itself (arena, ring, device, stages) live
// on its stack, in run_lane(); what outlives the thread is here.
struct ContentsJob::Lane {
  Lane(GpuContents contents, PagesSet its_pages, ImageLayout its_layout, std::uint64_t its_staging_bytes)
      : gpu(std::move(contents)),
        pages(std::move(its_pages)),
        layout(std::move(its_layout)),
        staging_bytes(its_staging_bytes),
        chunks_total(layout.chunk_count()) {}

  GpuContents gpu;
  PagesSet pages;
  ImageLayout layout;
  std::uint64_t staging_bytes;
  Sidecar sidecar;  // restore: as read; dump: filled by the lane
  bool has_sums = false;
  std::unique_ptr<FileSetSink> sink;  // dump to files: finished by the lane, committed by commit()
  GpuOutcome outcome;
  const std::uint64_t chunks_total;
  std::atomic<std::uint64_t> chunks_done{0};
  std::optional<LaneThread> thread;
};

ContentsJob::ContentsJob(Direction direction, int image_dir, int id, const Config& config,
                         const DumpId& dump_id, SharedByJobs& shared)
    : direction_(direction),
      image_dir_(image_dir),
      id_(id),
      config_(config),
      dump_id_(dump_id),
      shared_(shared) {}

ContentsJob::~ContentsJob() {
  cancel();
  lanes_.clear();  // joins
}

Result<std::unique_ptr<ContentsJob>> ContentsJob::dump(int image_dir, std::vector<GpuContents> gpus,
                                                       const Config& config, const DumpId& dump_id,
                                                       SharedByJobs& shared) {
  std::unique_ptr<ContentsJob> job(
      new ContentsJob(Direction::Dump, image_dir, kNoId, config, dump_id, shared));
  SLUICE_TRY(job->start(std::move(gpus)));
  job->begin();
  return job;
}

Result<std::unique_ptr<ContentsJob>> ContentsJob::restore(int image_dir, int id,
                                                          std::vector<GpuContents> gpus, const Config& config,
                                                          const DumpId& dump_id, SharedByJobs& shared) {
  std::unique_ptr<ContentsJob> job(
      new ContentsJob(Direction::Restore, image_dir, id, config, dump_id, shared));
  SLUICE_TRY(job->start(std::move(gpus)));
  return job;
}

// On error the job's destructor joins the lanes that run.
Result<void> ContentsJob::start(std::vector<GpuContents> gpus) {
  for (GpuContents& gpu : gpus) {
    SLUICE_TRY_ASSIGN(std::unique_ptr<Lane> lane, make_lane(std::move(gpu)));
    lanes_.push_back(std::move(lane));
  }
  {
    const Lock lock(mutex_);
    running_ = lanes_.size();
  }
  for (const std::unique_ptr<Lane>& each : lanes_) {
    Lane& lane = *each;
    SLUICE_TRY_ASSIGN(LaneThread thread, LaneThread::start("sluice-" + std::to_string(lane.gpu.render_minor),
                                                           [this, &lane]() -> Result<void> {
                                                             run_and_report(lane);
                                                             return {};
                                                           }));
    lane.thread.emplace(std::move(thread));
  }
  return {};
}

Result<std::unique_ptr<ContentsJob::Lane>> ContentsJob::make_lane(GpuContents gpu) {
  const Config config = config_.shared_by(gpu.sharers);
  PagesSet pages = pages_of(gpu);
  SLUICE_TRY_ASSIGN(ImageLayout layout, pages.layout(config.chunk_bytes));
  Sidecar sidecar;
  bool has_sums = false;
  if (direction_ == Direction::Dump) {
    has_sums = config.checksum;
    for (std::uint32_t file = 0; file < layout.file_count(); ++file)
      sidecar.tables.push_back(SumTable::sized(layout.file_bytes(file), kSumBlockBytes, contents_method()));
    sidecar.bo_table_digest = gpu.bo_table_digest;
    sidecar.dump_id = dump_id_;
  } else if (!streaming()) {
    SLUICE_TRY(take_sums(pages, layout, sidecar, has_sums));
  }
  auto lane =
      std::make_unique<Lane>(std::move(gpu), std::move(pages), std::move(layout), config.staging_bytes);
  lane->sidecar = std::move(sidecar);
  lane->has_sums = has_sums;
  return lane;
}

// Of a restore.
Result<void> ContentsJob::take_sums(const PagesSet& pages, const ImageLayout& layout, Sidecar& sidecar,
                                    bool& has_sums) {
  if (!config_.checksum) return {};
  const std::string name = pages.sums_name(id_);
  SLUICE_TRY_ASSIGN(std::optional<Sidecar> found,
                    take_sidecar(streaming() ? load_stream(name) : read_image(image_dir_, name), id_, pages,
                                 layout, dump_id_));
  has_sums = found.has_value();
  if (!found) {
    if (!shared_.unverified_said.exchange(true))
      note(Level::Warning, pages.pages_name(id_, 0) + " has no checksums (" + name +
                               " is missing): its contents, and those of all files without, are restored "
                               "unverified");
    return {};
  }
  sidecar = std::move(*found);
  return {};
}

void ContentsJob::begin() {
  const Lock lock(mutex_);
  begun_ = true;
  may_begin_.notify_all();
}

void ContentsJob::cancel() {
  {
    const Lock lock(mutex_);
    cancelled_ = true;
    may_begin_.notify_all();
  }
  shared_.room.wake();
}

// However the lane ends, it is counted: wait() relies on that.
void ContentsJob::run_and_report(Lane& lane) noexcept {
  Result<void> result = [&]() -> Result<void> {
    {
      Lock lock(mutex_);
      while (!begun_ && !cancelled_) lock.wait(may_begin_);
      if (!begun_) return Error{ECANCELED, {}};
    }
    lane.outcome.began_ns = monotonic_ns();
    return caught([&] { return run_lane(lane); });
  }();
  lane.outcome.ended_ns = monotonic_ns();
  const Lock lock(mutex_);
  if (!result && !failed_) {
    failed_ = true;
    first_error_ = std::move(result).error();
    cancelled_ = true;
  }
  --running_;
  lane_ended_.notify_all();
}

Result<void> ContentsJob::run_lane(Lane& lane) {
  if (direction_ == Direction::Dump || !streaming()) return carry(lane);
  const Lock turn(shared_.stream);
  if (shared_.stream_failure) return *shared_.stream_failure;
  if (cancelled_) return Error{ECANCELED, "cancelled"};
  auto done = caught([&]() -> Result<void> {
    SLUICE_TRY(take_sums(lane.pages, lane.layout, lane.sidecar, lane.has_sums));
    return carry(lane);
  });
  if (!done) shared_.stream_failure = done.error();
  return done;
}

Result<void> ContentsJob::carry(Lane& lane) {
  const LaneRoom::Place place(shared_.room, lane.gpu.render_minor, config_.lanes_at_once(),
                              [this] { return cancelled_ || shared_.stopped; });
  if (!place) return Error{ECANCELED, "cancelled"};
  const ImageLayout& layout = lane.layout;
  const auto slot_count = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(slots_in(lane.staging_bytes, layout.chunk_bytes()), layout.chunk_count()));
  // Made in this order, so destroyed in the other: stages first, then what they use.
  SLUICE_TRY_ASSIGN(StagingArena arena,
                    StagingArena::make(layout.chunk_bytes(), slot_count, lane.gpu.numa_node));
  std::string reactor_note;
  SLUICE_TRY_ASSIGN(
      const std::unique_ptr<Reactor> reactor,
      make_reactor(slot_count * static_cast<unsigned>(kOpsPerSlot), arena.bytes(), reactor_note));
  const ArenaKeeper keeper(arena, *reactor);
  if (!reactor_note.empty()) note(Level::Warning, lane.pages.words() + ": " + reactor_note);
  std::vector<Slot> slots = slots_of(arena);

  SLUICE_TRY_ASSIGN(const drm::Device device, drm::Device::open(lane.gpu.render_minor));
  const auto look_at_vram = [&]() -> Result<void> {
    SLUICE_TRY_ASSIGN(const std::uint32_t losses, device.vram_losses());
    return shared_.vram.look(lane.gpu.render_minor, losses);
  };
  SLUICE_TRY(look_at_vram());
  std::vector<drm::BoSource> bos;
  bos.reserve(lane.gpu.bos.size());
  for (ContentBo& bo : lane.gpu.bos) bos.push_back({std::move(bo.dmabuf), bo.bytes});
  SLUICE_TRY_ASSIGN(
      const std::unique_ptr<drm::SdmaCopy> copy,
      drm::SdmaCopy::make(device, direction_, layout, std::move(bos), arena, slots, *reactor,
                          {.fence_timeout = config_.fence_timeout, .stopped = &shared_.stopped}));
  if (!copy->staging_note().empty()) note(Level::Warning, lane.pages.words() + ": " + copy->staging_note());

  std::unique_ptr<SlotWorkers> workers;
  if (const unsigned threads = lane.has_sums ? spare_workers(shared_.lanes) : 0; threads > 0) {
    SLUICE_TRY_ASSIGN(workers, SlotWorkers::start("sluice-sum", threads, slot_count));
  }
  // Upstream's plugin has written garbage there, in images of render files. With sums they are compared
  // anyway.
  const bool check_headers = !lane.gpu.drm_minor || lane.has_sums;
  ChecksumStage checksum(
      direction_, layout, *reactor, lane.has_sums ? std::span(lane.sidecar.tables) : std::span<SumTable>(),
      ChecksumOptions{config_.zero_holes, check_headers},
      [this, &lane](std::uint32_t file, std::uint64_t offset, std::uint64_t length) {
        return lane.pages.describe(id_, lane.layout, Chunk{0, offset, length, file});
      },
      std::move(workers));
  const FileOptions file_options{.io_mode = config_.io_mode,
                                 .holes = config_.zero_holes,
                                 .sync = config_.sync,
                                 .reuse = config_.reuse_files,
                                 .share = &shared_.disk,
                                 .turn = lane.gpu.turn,
                                 .most_on_disk = most_on_disk(slot_count)};
  std::unique_ptr<FileSetSource> source;
  std::unique_ptr<PipeStore> pipe;
  std::array<Stage*, 3> route{};
  if (streaming()) {
    pipe = std::make_unique<PipeStore>(
        direction_, [this](const std::string& name) { return open_stream(name, direction_); },
        direction_ == Direction::Dump ? lane.gpu.working_names : lane.pages.pages_names(id_), layout,
        *reactor);
    route = {copy.get(), &checksum, pipe.get()};
    if (direction_ == Direction::Restore) std::swap(route.front(), route.back());
  } else if (direction_ == Direction::Dump) {
    lane.sink =
        std::make_unique<FileSetSink>(image_dir_, lane.gpu.working_names, layout, *reactor, file_options);
    route = {copy.get(), &checksum, lane.sink.get()};
  } else {
    SLUICE_TRY_ASSIGN(
        source, FileSetSource::open(image_dir_, lane.pages.pages_names(id_), layout, *reactor, file_options));
    route = {source.get(), &checksum, copy.get()};
  }

  Pipeline pipeline(layout, slots, route, *reactor);
  if (config_.trace) {
    lane.outcome.trace = Trace(std::min(layout.chunk_count() * route.size(), kMostTraceEvents));
    pipeline.trace_into(lane.outcome.trace);
  }
  auto stats = pipeline.run([&lane](std::uint64_t done, std::uint64_t) { lane.chunks_done = done; },
                            [this] { return cancelled_ || shared_.stopped; });
  if (!stats && pipe && stats.error().err == ENODATA) return early_end(stats.error().what);
  if (!stats) return stats.error();
  SLUICE_TRY(look_at_vram());
  lane.outcome.stats = *stats;
  lane.outcome.direct_io = (lane.sink && lane.sink->direct()) || (source && source->direct());
  lane.outcome.gpu_id = lane.gpu.gpu_id;
  lane.outcome.bos = lane.gpu.bos.size();
  lane.outcome.bytes = layout.all_payload_bytes();
  lane.outcome.zero_bytes = lane.outcome.stats.zero_bytes;
  lane.outcome.io_bytes = layout.all_file_bytes() - (pipe ? 0 : lane.outcome.stats.zero_bytes);
  lane.outcome.pinned_bytes = copy->stats().pinned_bytes;
  lane.outcome.verified = direction_ == Direction::Restore && lane.has_sums;
  return {};
}

Result<void> ContentsJob::wait(const std::function<void(const std::string&)>& report) {
  {
    Lock lock(mutex_);
    auto report_at = std::chrono::steady_clock::now() + kProgressPeriod;
    std::optional<std::chrono::steady_clock::time_point> give_up_at;
    while (running_ > 0) {
      const auto now = std::chrono::steady_clock::now();
      if (shared_.stopped && !give_up_at) give_up_at = now + kStopPatience;
      if (give_up_at && now >= *give_up_at) return Error{ECANCELED, "stopped"};
      (void)lock.wait_until(lane_ended_, std::min(report_at, now + kStopPeriod));
      if (running_ == 0 || now < report_at) continue;
      std::uint64_t chunks_done = 0;
      std::uint64_t chunks_total = 0;
      for (const auto& lane : lanes_) chunks_done += lane->chunks_done, chunks_total += lane->chunks_total;
      lock.unlock();
      if (report) {
        char line[128];
        (void)std::snprintf(line, sizeof line, "%s: %" PRIu64 " of %" PRIu64 " MiB (%" PRIu64 "%%)",
                            direction_ == Direction::Dump ? "dump" : "restore",
                            chunks_done * config_.chunk_bytes / kMiB,
                            chunks_total * config_.chunk_bytes / kMiB,
                            chunks_done * 100 / std::max<std::uint64_t>(chunks_total, 1));
        report(line);
      }
      report_at = std::chrono::steady_clock::now() + kProgressPeriod;
      lock.lock();
    }
  }
  for (const auto& lane : lanes_) {
    if (lane->thread) (void)lane->thread->join();  // its result is in first_error_
    lane->thread.reset();
    outcomes_.push_back(std::move(lane->outcome));
  }
  const Lock lock(mutex_);
  if (failed_) return first_error_;
  return {};
}

std::vector<std::string> ContentsJob::image_names(int id) const {
  std::vector<std::string> names;
  for (const auto& lane : lanes_) {
    std::vector<std::string> pages = lane->pages.pages_names(id);
    std::move(pages.begin(), pages.end(), std::back_inserter(names));
    names.push_back(lane->pages.sums_name(id));
  }
  return names;
}

Result<void> ContentsJob::commit(int id) {
  for (const auto& lane : lanes_) {
    std::vector<std::string> names = lane->pages.pages_names(id);
    if (lane->has_sums) {
      lane->sidecar.pages_files = names;
      SLUICE_TRY(save_image(lane->pages.sums_name(id), pack_sidecar(lane->sidecar), config_.sync));
    }
    if (!lane->sink) continue;  // streams
    lane->sink->set_names(std::move(names));
    SLUICE_TRY(lane->sink->commit());
  }
  return {};
}

LogLines ContentsJob::take_log_lines() {
  const Lock lock(mutex_);
  return std::exchange(log_lines_, {});
}

void ContentsJob::note(Level level, std::string text) {
  const Lock lock(mutex_);
  log_lines_.push_back({level, std::move(text)});
}

}  // namespace sluice::plugin
