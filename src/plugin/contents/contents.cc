// SPDX-License-Identifier: MIT
#include "plugin/contents/contents.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "base/clock.h"
#include "base/units.h"
#include "images/files.h"
#include "images/key.h"
#include "images/pages.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/lane.h"
#include "pipeline/store/file_set.h"
#include "pipeline/store/pipe_store.h"
#include "plugin/host/image_store.h"

namespace sluice::plugin {

namespace {

constexpr int kNoId = -1;  // of a dump: the host says it later
constexpr std::uint64_t kProgressPeriodNs = kNsPerSecond;
constexpr std::uint64_t kStopPeriodNs = kNsPerSecond / 20;  // how often wait() looks whether all is stopped
constexpr std::uint64_t kStopPatienceNs = std::chrono::nanoseconds(kStopPatience).count();
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

// What one lane carries, and what became of it. What the lane's thread makes for itself lives on its stack,
// in carry(); what outlives the thread is here.
struct ContentsJob::Load {
  Load(GpuContents contents, PagesSet its_pages, ImageLayout its_layout, std::uint64_t its_staging_bytes)
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

struct ContentsJob::Store {
  Stage* stage;
  const FileSet* files;  // the same; null: a stream
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
  loads_.clear();  // joins
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
    SLUICE_TRY_ASSIGN(std::unique_ptr<Load> load, make_load(std::move(gpu)));
    loads_.push_back(std::move(load));
  }
  {
    const Lock lock(mutex_);
    running_ = loads_.size();
  }
  for (const std::unique_ptr<Load>& each : loads_) {
    Load& load = *each;
    SLUICE_TRY_ASSIGN(LaneThread thread,
                      shared_.world.start_thread("sluice-" + std::to_string(load.gpu.render_minor),
                                                 [this, &load]() -> Result<void> {
                                                   run_and_report(load);
                                                   return {};
                                                 }));
    load.thread.emplace(std::move(thread));
  }
  return {};
}

Result<std::unique_ptr<ContentsJob::Load>> ContentsJob::make_load(GpuContents gpu) {
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
  auto load =
      std::make_unique<Load>(std::move(gpu), std::move(pages), std::move(layout), config.staging_bytes);
  load->sidecar = std::move(sidecar);
  load->has_sums = has_sums;
  load->outcome.gpu_id = load->gpu.gpu_id;
  load->outcome.bos = load->gpu.bos.size();
  load->outcome.bytes = load->layout.all_payload_bytes();
  return load;
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
  shared_.world.wake(may_begin_);
}

void ContentsJob::cancel() {
  {
    const Lock lock(mutex_);
    cancelled_ = true;
    shared_.world.wake(may_begin_);
  }
  shared_.room.wake();
}

// However the lane ends, it is counted: wait() relies on that.
void ContentsJob::run_and_report(Load& load) noexcept {
  Result<void> result = caught([&]() -> Result<void> {
    {
      Lock lock(mutex_);
      while (!begun_ && !cancelled_) shared_.world.wait(lock, may_begin_);
      if (!begun_) return Error{ECANCELED, {}};
    }
    load.outcome.began_ns = shared_.world.now_ns();
    return run_lane(load);
  });
  load.outcome.ended_ns = shared_.world.now_ns();
  const Lock lock(mutex_);
  if (!result && !failed_) {
    failed_ = true;
    first_error_ = std::move(result).error();
    cancelled_ = true;
  }
  --running_;
  shared_.world.wake(lane_ended_);
}

Result<void> ContentsJob::run_lane(Load& load) {
  if (direction_ == Direction::Dump || !streaming()) return carry(load);
  const Lock turn(shared_.stream);
  if (shared_.stream_failure) return *shared_.stream_failure;
  if (cancelled_) return Error{ECANCELED, "cancelled"};
  auto done = caught([&]() -> Result<void> {
    SLUICE_TRY(take_sums(load.pages, load.layout, load.sidecar, load.has_sums));
    return carry(load);
  });
  if (!done) shared_.stream_failure = done.error();
  return done;
}

Result<void> ContentsJob::carry(Load& load) {
  const LaneRoom::Place place(shared_.room, load.gpu.render_minor, config_.lanes_at_once(),
                              [this] { return is_stopped(); });
  if (!place) return Error{ECANCELED, "cancelled"};
  SLUICE_TRY_ASSIGN(const std::unique_ptr<LaneGpu> gpu, shared_.world.open_gpu(load.gpu));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<Lane> lane,
                    Lane::make(load.layout, {load.staging_bytes, load.gpu.numa_node}, shared_.world));
  if (!lane->note().empty()) note(Level::Warning, load.pages.words() + ": " + lane->note());
  SLUICE_TRY(look_at_vram(load, *gpu));
  SLUICE_TRY_ASSIGN(Stage* const copy, own_copy(load, *lane, *gpu));
  SLUICE_TRY_ASSIGN(Stage* const checksum, own_checksum(load, *lane));
  SLUICE_TRY_ASSIGN(const Store store, own_store(load, *lane));
  const Route route = Route{copy, checksum, store.stage}.towards(direction_);
  GpuOutcome& outcome = load.outcome;
  if (config_.trace)
    outcome.trace = Trace(std::min(load.layout.chunk_count() * route.stages().size(), kMostTraceEvents));
  auto stats = lane->run(
      route, [&load](std::uint64_t done, std::uint64_t) { load.chunks_done = done; },
      [this] { return is_stopped(); }, config_.trace ? &outcome.trace : nullptr);
  const bool streams = store.files == nullptr;
  if (!stats && streams && stats.error().err == ENODATA) return early_end(stats.error().what);
  if (!stats) return stats.error();
  SLUICE_TRY(look_at_vram(load, *gpu));
  outcome.stats = *stats;
  outcome.zero_bytes = stats->zero_bytes;
  outcome.io_bytes = load.layout.all_file_bytes() - (streams ? 0 : stats->zero_bytes);
  outcome.direct_io = !streams && store.files->direct();
  outcome.verified = direction_ == Direction::Restore && load.has_sums;
  return {};
}

Result<Stage*> ContentsJob::own_copy(Load& load, Lane& lane, LaneGpu& gpu) {
  std::vector<drm::BoSource> bos;
  bos.reserve(load.gpu.bos.size());
  for (ContentBo& bo : load.gpu.bos) bos.push_back({std::move(bo.dmabuf), bo.bytes});
  SLUICE_TRY_ASSIGN(GpuCopy copy,
                    gpu.make_copy(direction_, lane, std::move(bos),
                                  {.fence_timeout = config_.fence_timeout, .stopped = &shared_.stopped}));
  if (!copy.note.empty()) note(Level::Warning, load.pages.words() + ": " + copy.note);
  load.outcome.pinned_bytes = copy.pinned_bytes;
  return &lane.own(std::move(copy.stage));
}

Result<Stage*> ContentsJob::own_checksum(Load& load, Lane& lane) {
  // Upstream's plugin has written garbage there, in images of render files. With sums they are compared
  // anyway.
  const bool check_headers = !load.gpu.drm_minor || load.has_sums;
  SLUICE_TRY_ASSIGN(
      std::unique_ptr<Stage> checksum,
      make_checksum(
          lane, direction_, load.has_sums ? std::span(load.sidecar.tables) : std::span<SumTable>(),
          ChecksumOptions{config_.zero_holes, check_headers},
          [this, &load](std::uint32_t file, std::uint64_t offset, std::uint64_t length) {
            return load.pages.describe(id_, load.layout, Chunk{0, offset, length, file});
          },
          load.has_sums ? shared_.world.spare_workers(shared_.lanes) : 0));
  return &lane.own(std::move(checksum));
}

// A dump's sink is the load's: it outlives the lane.
Result<ContentsJob::Store> ContentsJob::own_store(Load& load, Lane& lane) {
  const bool dumps = direction_ == Direction::Dump;
  if (streaming()) {
    PipeStore& pipe = lane.own(std::make_unique<PipeStore>(
        direction_, [this](const std::string& name) { return open_stream(name, direction_); },
        dumps ? load.gpu.working_names : load.pages.pages_names(id_), load.layout, lane.reactor()));
    return Store{&pipe, nullptr};
  }
  const FileOptions options{.io_mode = config_.io_mode,
                            .holes = config_.zero_holes,
                            .sync = config_.sync,
                            .reuse = config_.reuse_files,
                            .share = &shared_.disk,
                            .turn = load.gpu.turn,
                            .most_on_disk = most_on_disk(lane.slot_count())};
  if (dumps) {
    load.sink = std::make_unique<FileSetSink>(image_dir_, load.gpu.working_names, load.layout, lane.reactor(),
                                              options);
    return Store{load.sink.get(), load.sink.get()};
  }
  SLUICE_TRY_ASSIGN(
      std::unique_ptr<FileSetSource> source,
      FileSetSource::open(image_dir_, load.pages.pages_names(id_), load.layout, lane.reactor(), options));
  FileSetSource& files = lane.own(std::move(source));
  return Store{&files, &files};
}

Result<void> ContentsJob::look_at_vram(const Load& load, LaneGpu& gpu) {
  SLUICE_TRY_ASSIGN(const std::uint32_t losses, gpu.vram_losses());
  return shared_.vram.look(load.gpu.render_minor, losses);
}

Result<void> ContentsJob::wait(const std::function<void(const std::string&)>& report) {
  {
    Lock lock(mutex_);
    LaneWorld& world = shared_.world;
    std::uint64_t report_at_ns = world.now_ns() + kProgressPeriodNs;
    std::optional<std::uint64_t> give_up_at_ns;
    while (running_ > 0) {
      const std::uint64_t now_ns = world.now_ns();
      if (shared_.stopped && !give_up_at_ns) give_up_at_ns = now_ns + kStopPatienceNs;
      if (give_up_at_ns && now_ns >= *give_up_at_ns) return Error{ECANCELED, "stopped"};
      world.wait(lock, lane_ended_, std::min(report_at_ns, now_ns + kStopPeriodNs));
      if (running_ == 0 || now_ns < report_at_ns) continue;
      std::uint64_t chunks_done = 0;
      std::uint64_t chunks_total = 0;
      for (const auto& load : loads_) chunks_done += load->chunks_done, chunks_total += load->chunks_total;
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
      report_at_ns = world.now_ns() + kProgressPeriodNs;
      lock.lock();
    }
  }
  for (const auto& load : loads_) {
    if (load->thread) (void)load->thread->join();  // its result is in first_error_
    load->thread.reset();
    outcomes_.push_back(std::move(load->outcome));
  }
  const Lock lock(mutex_);
  if (failed_) return first_error_;
  return {};
}

std::vector<std::string> ContentsJob::image_names(int id) const {
  std::vector<std::string> names;
  for (const auto& load : loads_) {
    std::vector<std::string> pages = load->pages.pages_names(id);
    std::move(pages.begin(), pages.end(), std::back_inserter(names));
    names.push_back(load->pages.sums_name(id));
  }
  return names;
}

Result<void> ContentsJob::commit(int id) {
  for (const auto& load : loads_) {
    std::vector<std::string> names = load->pages.pages_names(id);
    if (load->has_sums) {
      load->sidecar.pages_files = names;
      SLUICE_TRY(save_image(load->pages.sums_name(id), pack_sidecar(load->sidecar), config_.sync));
    }
    if (!load->sink) continue;  // streams
    load->sink->set_names(std::move(names));
    SLUICE_TRY(load->sink->commit());
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
