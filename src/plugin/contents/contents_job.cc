// SPDX-License-Identifier: MIT
#include "plugin/contents/contents_job.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <set>

#include "base/caught.h"
#include "base/clock.h"
#include "base/format.h"
#include "base/units.h"
#include "images/pages.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/checksum/content_match.h"
#include "pipeline/chunk_walk.h"
#include "pipeline/extents/extent_cloner.h"
#include "pipeline/extents/extent_source.h"
#include "pipeline/lane.h"
#include "pipeline/late_stage.h"
#include "pipeline/replica/replica_gate.h"
#include "pipeline/store/file_set.h"
#include "plugin/contents/left_out.h"

namespace sluice::plugin {

namespace {

constexpr int kNoId = -1;  // of a dump: the host gives it later
constexpr std::uint64_t kProgressPeriodNs = kNsPerSecond;
constexpr std::uint64_t kStopPeriodNs =
    kNsPerSecond / 20;  // how often wait() checks whether the run is stopped
constexpr std::uint64_t kStopPatienceNs = std::chrono::nanoseconds(kStopPatience).count();
constexpr std::uint64_t kMostTraceEvents = std::uint64_t{1} << 18;  // per lane

// What others may have of the lane's contents; null: nothing. Borrows layout and tables.
std::unique_ptr<ContentMatch> match_with(const DumpSums& sums, const PagesSet& pages,
                                         const ImageLayout& layout, std::span<const SumTable> tables,
                                         std::vector<Leader> leaders = {}) {
  std::vector<KnownBo> bos(pages.bos.size());
  if (sums.parent != nullptr) bos = sums.parent->bos_like(pages);
  const bool any = std::any_of(bos.begin(), bos.end(), [](const KnownBo& bo) { return bo.files != nullptr; });
  if (!any && leaders.empty()) return nullptr;
  return std::make_unique<ContentMatch>(layout, tables, std::move(bos), sums.clone_block_bytes,
                                        std::move(leaders));
}

}  // namespace

LaneContents::LaneContents(PagesSet set, std::vector<UniqueFd>& all, std::uint32_t minor)
    : pages(std::move(set)), render_minor(minor) {
  for (const PagesBo& bo : pages.bos) dmabufs.push_back(std::move(all[bo.number]));
}

Result<void> check_stopped(const SharedByJobs& shared) {
  return shared.stopped ? Error{ECANCELED, "the dump was stopped; the line before this one says why [SL-D07]"}
                        : Result<void>();
}

// One lane's work and result. What only the lane's thread uses is on its stack, in carry(); what outlives the
// thread is here.
struct ContentsJob::Load {
  Load(LaneContents its_contents, LaneFiles its_files, ImageLayout its_layout,
       std::uint64_t its_staging_bytes)
      : contents(std::move(its_contents)),
        files(std::move(its_files)),
        layout(std::move(its_layout)),
        staging_bytes(its_staging_bytes),
        chunks_total(layout.chunk_count()) {}

  const PagesSet& pages() const { return contents.pages; }

  LaneContents contents;
  LaneFiles files;
  ImageLayout layout;
  std::uint64_t staging_bytes;
  // Restore: as read; dump: filled by the lane, and kept for those that follow it.
  std::shared_ptr<Sidecar> sidecar = std::make_shared<Sidecar>();
  std::optional<LaneRoom::Place> place;      // to run
  std::optional<Replicas::Member> replicas;  // dump, from then on
  std::unique_ptr<ContentMatch> match;       // dump, where others may have the same contents
  bool has_sums = false;
  std::unique_ptr<FileSetSink> sink;      // dump: see PagesStage
  const ExtentSource* extents = nullptr;  // restore, while the lane runs: where its files' bytes are
  std::shared_ptr<SharedReader> reader;   // restore, until the lane has ended; may be null
  GpuOutcome outcome;
  const std::uint64_t chunks_total;
  std::atomic<std::uint64_t> chunks_done{0};
  std::optional<LaneThread> thread;
};

ContentsJob::ContentsJob(Direction direction, int id, const settings::Config& config, const DumpId& dump_id,
                         SharedByJobs& shared)
    : direction_(direction), id_(id), config_(config), dump_id_(dump_id), shared_(shared) {}

ContentsJob::~ContentsJob() {
  cancel();
  loads_.clear();  // joins
}

Result<std::unique_ptr<ContentsJob>> ContentsJob::dump(std::vector<LaneContents> lanes,
                                                       std::vector<LaneFiles> files,
                                                       const settings::Config& config, const DumpId& dump_id,
                                                       SharedByJobs& shared) {
  std::unique_ptr<ContentsJob> job(new ContentsJob(Direction::Dump, kNoId, config, dump_id, shared));
  SLUICE_TRY(job->start(std::move(lanes), std::move(files)));
  job->begin();
  return job;
}

Result<std::unique_ptr<ContentsJob>> ContentsJob::restore(int id, std::vector<LaneContents> lanes,
                                                          const settings::Config& config,
                                                          const DumpId& dump_id, SharedByJobs& shared) {
  std::unique_ptr<ContentsJob> job(new ContentsJob(Direction::Restore, id, config, dump_id, shared));
  std::vector<LaneFiles> files(lanes.size());
  SLUICE_TRY(job->start(std::move(lanes), std::move(files)));
  return job;
}

// On error the job's destructor joins the lanes that run.
Result<void> ContentsJob::start(std::vector<LaneContents> lanes, std::vector<LaneFiles> files) {
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    SLUICE_TRY_ASSIGN(std::unique_ptr<Load> load, make_load(std::move(lanes[i]), std::move(files[i])));
    loads_.push_back(std::move(load));
    // Here, in the order of the plan: a lane that starts later in its thread still leads.
    if (direction_ == Direction::Dump) take_place(*loads_.back(), [] { return true; });
  }
  {
    const Lock lock(mutex_);
    running_ = loads_.size();
  }
  for (const std::unique_ptr<Load>& each : loads_) {
    Load& load = *each;
    SLUICE_TRY_ASSIGN(LaneThread thread,
                      shared_.world.start_thread("sluice-" + std::to_string(load.contents.render_minor),
                                                 [this, &load]() -> Result<void> {
                                                   run_and_report(load);
                                                   return {};
                                                 }));
    load.thread.emplace(std::move(thread));
  }
  return {};
}

Result<std::unique_ptr<ContentsJob::Load>> ContentsJob::make_load(LaneContents contents, LaneFiles files) {
  const settings::Config config = config_.shared_by(contents.sharers, shared_.lanes);
  const PagesSet& pages = contents.pages;
  SLUICE_TRY_ASSIGN(ImageLayout layout, pages.layout(config.chunk_bytes));
  Sidecar sidecar;
  bool has_sums = false;
  if (direction_ == Direction::Dump) {
    has_sums = config.checksum;
    sidecar.tables = unit_tables(layout, kSumBlockBytes, shared_.sums.method);
    sidecar.bo_table_digest = pages.bo_table_digest;
    sidecar.dump_id = dump_id_;
  } else if (!shared_.store.one_way()) {
    SLUICE_TRY(take_sums(pages, layout, sidecar, has_sums));
  }
  auto load =
      std::make_unique<Load>(std::move(contents), std::move(files), std::move(layout), config.staging_bytes);
  *load->sidecar = std::move(sidecar);
  load->has_sums = has_sums;
  load->outcome.gpu_id = load->pages().gpu_id;
  load->outcome.bos = load->pages().bos.size();
  load->outcome.bytes = load->layout.all_payload_bytes();
  // Here, because this thread makes all lanes: none has to wait for another to make the reader.
  if (shared_.readers && reads_once(*load))
    load->reader = shared_.readers->get(shared_.world, config.chunk_bytes,
                                        SharedReaders::bytes_for(shared_.lanes, config.staging_bytes));
  return load;
}

// Restore.
Result<void> ContentsJob::take_sums(const PagesSet& pages, const ImageLayout& layout, Sidecar& sidecar,
                                    bool& has_sums) {
  // A file whose contents lie partly in the parent needs its sidecar, and is never in a stream.
  const std::optional<int> directory = shared_.store.directory();
  if (!config_.checksum && !(directory && needs_sidecar(*directory, id_, pages, layout))) return {};
  const std::string name = pages.sums_name(id_);
  SLUICE_TRY_ASSIGN(std::optional<Sidecar> found, take_sidecar(shared_.store.load_once(name), id_, pages,
                                                               layout, dump_id_, shared_.store.keys()));
  if (found && found->needs().any() && !directory)
    return Error{
        // unreached: a guard
        ENOSYS, name + " belongs to partial files; restore from the directory, not from a stream [SL-R07]"};
  has_sums = found && config_.checksum;
  if (!found) {
    if (!shared_.warned.unverified.exchange(true))
      note(
          Level::Warning,
          formatted("{} has no checksums ({} is missing), so its contents, and those of other files without, "
                    "are restored unverified [SL-C15]",
                    pages.pages_name(id_, 0), name));
    return {};
  }
  sidecar = std::move(*found);
  return {};
}

// After the lane has ended whose contents others may have. `copied_bytes`: that could not be shared.
Result<void> ContentsJob::take_match(Load& load, std::uint64_t copied_bytes) {
  const ContentMatch& match = *load.match;
  SLUICE_TRY(match.wait_for_leaders([this] { return is_stopped(); }));
  Sidecar& sidecar = *load.sidecar;
  const bool shares = match.shares_extents();
  for (std::uint32_t file = 0; file < load.layout.file_count(); ++file) {
    FoundRuns runs = match.runs(file);
    if (!shares) sidecar.parents.push_back(std::move(runs.parents));
    sidecar.replicas.push_back(std::move(runs.replicas));
  }
  if (!shares && shared_.sums.parent != nullptr) sidecar.parent_dump_id = shared_.sums.parent->dump_id();
  sidecar.replicas_left_out = !shares;
  GpuOutcome& outcome = load.outcome;
  const std::uint64_t copied_replicas = std::min(copied_bytes, match.replica_bytes());
  outcome.replica_bytes = match.replica_bytes() - copied_replicas;
  outcome.parent_bytes = match.parent_bytes() - (copied_bytes - copied_replicas);
  outcome.io_bytes -= outcome.parent_bytes + outcome.replica_bytes;
  if (shared_.sums.parent != nullptr)
    note(Level::Info, formatted("{}: {} of {} MiB are the same in the parent{}", load.pages().describe(),
                                outcome.parent_bytes / kMiB, outcome.bytes / kMiB,
                                shares ? ", and share its extents" : ""));
  if (outcome.replica_bytes > 0)
    note(Level::Info, formatted("{}: {} of {} MiB are the same on other GPUs{}", load.pages().describe(),
                                outcome.replica_bytes / kMiB, outcome.bytes / kMiB,
                                shares ? ", and share their extents" : ""));
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

// Every lane is counted at its end, whatever the outcome: wait() relies on that.
void ContentsJob::run_and_report(Load& load) noexcept {
  ++shared_.running;
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
  load.reader.reset();
  load.match.reset();
  load.replicas.reset();
  load.place.reset();
  if (load.contents.giver) load.outcome.skipped_bytes = load.contents.giver->skipped_bytes();
  const Lock lock(mutex_);
  if (!result && !failed_) {
    failed_ = true;
    first_error_ = std::move(result).error();
    cancelled_ = true;
  }
  --running_;
  --shared_.running;
  shared_.world.wake(lane_ended_);
}

Result<void> ContentsJob::run_lane(Load& load) {
  if (direction_ == Direction::Dump) {
    Result<void> carried = carry(load);
    const bool may_be_left_out = !carried && load.contents.giver && load.contents.giver->is_lost();
    if (!may_be_left_out || is_stopped()) return carried;
    note(Level::Warning, formatted("the pre-dump leaves {} out: {}; the next dump writes all of it [SL-D64]",
                                   load.pages().describe(), carried.error().what));
    return leave_out(load);
  }
  if (!shared_.store.one_way()) return carry(load);
  const Lock turn(shared_.stream.mutex);
  if (shared_.stream.failure) return *shared_.stream.failure;
  if (cancelled_) return Error{ECANCELED, "cancelled"};
  auto done = caught([&]() -> Result<void> {
    SLUICE_TRY(take_sums(load.pages(), load.layout, *load.sidecar, load.has_sums));
    return carry(load);
  });
  if (!done) shared_.stream.failure = done.error();
  return done;
}

// A pre-dump need not be quick, and the job may free BOs that it has not begun. With one file for each BO,
// cursors would keep many files open.
std::uint32_t ContentsJob::cursors_of(const Load& load) const {
  const bool one_file = load.layout.file_count() == 1;
  return load.match && shared_.sums.parent != nullptr && !load.contents.giver && one_file
             ? cursors_for_changes(load.layout.chunk_count())
             : 1;
}

// Waits for it until `gives_up()`. True: the lane has its place and, in a dump, knows whom it follows.
bool ContentsJob::take_place(Load& load, const std::function<bool()>& gives_up) {
  if (load.place) return true;
  if (!load.place.emplace(shared_.room, load.contents.render_minor, config_.lanes_at_once(), gives_up)) {
    load.place.reset();
    return false;
  }
  if (direction_ == Direction::Restore || !load.has_sums) return true;
  load.replicas.emplace(shared_.replicas, load.contents.number, load.contents.leaders, [&] {
    return std::make_shared<LeaderLane>(
        load.layout, std::shared_ptr<const KnownFiles::Tables>(load.sidecar, &load.sidecar->tables),
        load.files.names.front(), shared_.world);
  });
  std::vector<Leader> leaders = load.replicas->take_leaders();
  // With a parent, a walk's order depends on the number of chunks.
  for (Leader& leader : leaders)
    leader.in_step = shared_.sums.parent == nullptr ||
                     leader.lane->files.layout.chunk_count() == load.layout.chunk_count();
  load.match = match_with(shared_.sums, load.pages(), load.layout, load.sidecar->tables, std::move(leaders));
  return true;
}

// Dump: the lane's file is complete.
Result<void> ContentsJob::tell_followers(Load& load) {
  if (!load.replicas || load.replicas->leads() == nullptr) return {};
  const std::string name = temporary_name_of(load.files.names.front());
  UniqueFd file(::openat(*shared_.store.directory(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return make_error(errno, "open " + name, Topic::Images);
  const UnitIndex units(load.layout, load.sidecar->tables.front().block_bytes);
  const auto index = [&](const std::vector<KnownRuns>& runs) {
    return runs.empty() ? RunIndex() : RunIndex(load.layout, units, 0, runs.front());
  };
  load.replicas->complete({std::move(file), index(load.sidecar->parents), index(load.sidecar->replicas)});
  return {};
}

Result<void> ContentsJob::carry(Load& load) {
  if (!take_place(load, [this] { return is_stopped(); })) return Error{ECANCELED, "cancelled"};
  SLUICE_TRY_ASSIGN(const std::unique_ptr<LaneGpu> gpu, shared_.world.open_gpu(load.contents));
  SLUICE_TRY_ASSIGN(const std::unique_ptr<Lane> lane,
                    Lane::make(load.layout, {load.staging_bytes, load.contents.numa_node, cursors_of(load)},
                               shared_.world));
  if (!lane->note().empty()) note(Level::Warning, load.pages().describe() + ": " + lane->note());
  SLUICE_TRY(look_at_vram(load, *gpu));
  SLUICE_TRY_ASSIGN(Stage* const copy, own_copy(load, *lane, *gpu));
  SLUICE_TRY(flow(load, *lane, *copy));
  SLUICE_TRY(look_at_vram(load, *gpu));
  return tell_followers(load);
}

// Pre-dump: runs the lane again, without the GPU.
Result<void> ContentsJob::leave_out(Load& load) {
  load.sink.reset();
  load.chunks_done = 0;
  if (load.match) load.match = match_with(shared_.sums, load.pages(), load.layout, load.sidecar->tables);
  SLUICE_TRY_ASSIGN(const std::unique_ptr<Lane> lane,
                    Lane::make(load.layout, {load.staging_bytes, load.contents.numa_node}, shared_.world));
  return flow(load, *lane, lane->own(std::make_unique<LeftOut>(load.layout, lane->reactor())));
}

// The lane's work, from its first chunk to its last.
Result<void> ContentsJob::flow(Load& load, Lane& lane, Stage& copy) {
  SLUICE_TRY_ASSIGN(Stage* const checksum, own_checksum(load, lane));
  // Ends before the lane, because it uses the lane's slots.
  SLUICE_TRY_ASSIGN(const std::unique_ptr<ExtentCloner> cloner, make_cloner(load, lane));
  SLUICE_TRY_ASSIGN(PagesStage store, make_store(load, lane, cloner.get()));
  load.sink = std::move(store.sink);
  SLUICE_TRY_ASSIGN(Stage* const gate, own_gate(load, lane));
  const Route route = Route{gate, &copy, checksum, store.stage}.towards(direction_);
  GpuOutcome& outcome = load.outcome;
  if (config_.trace)
    outcome.trace = Trace(std::min(load.layout.chunk_count() * route.stages().size(), kMostTraceEvents));
  auto stats = lane.run(
      route, [&load](std::uint64_t done, std::uint64_t) { load.chunks_done = done; },
      [this] { return is_stopped(); }, config_.trace ? &outcome.trace : nullptr);
  if (!stats) return shared_.store.explain(std::move(stats).error());
  outcome.stats = *stats;
  outcome.zero_bytes = stats->zero_bytes;
  outcome.io_bytes = load.layout.all_file_bytes() - (store.files != nullptr ? stats->zero_bytes : 0);
  outcome.direct_io = store.files != nullptr && store.files->direct();
  outcome.verified = direction_ == Direction::Restore && load.has_sums;
  return load.match ? take_match(load, cloner ? cloner->copied_bytes() : 0) : Result<void>();
}

// Null where the lane follows none.
Result<Stage*> ContentsJob::own_gate(Load& load, Lane& lane) {
  if (!load.match || !load.match->follows()) return nullptr;
  SLUICE_TRY_ASSIGN(std::unique_ptr<ReplicaGate> gate, ReplicaGate::make(*load.match, lane.reactor()));
  return &lane.own(std::move(gate));
}

// A restore makes it when the first chunk is read: the disk works while the GPU registers the staging memory.
Result<Stage*> ContentsJob::own_copy(Load& load, Lane& lane, LaneGpu& gpu) {
  const auto make = [this, &load, &lane, &gpu] { return make_copy(load, lane, gpu); };
  if (direction_ == Direction::Restore) return &lane.own(std::make_unique<LateStage>("copy", make));
  SLUICE_TRY_ASSIGN(std::unique_ptr<Stage> copy, make());
  return &lane.own(std::move(copy));
}

Result<std::unique_ptr<Stage>> ContentsJob::make_copy(Load& load, Lane& lane, LaneGpu& gpu) {
  drm::SdmaCopyOptions options{.fence_timeout = config_.fence_timeout, .stopped = &shared_.stopped};
  if (load.contents.giver) {
    options.giver = load.contents.giver.get();
    const std::uint64_t rate = config_.predump_bytes_per_second;
    options.bytes_per_second = rate == 0 ? 0 : std::max<std::uint64_t>(rate / load.contents.sharers, 1);
  }
  SLUICE_TRY_ASSIGN(GpuCopy copy, gpu.make_copy(direction_, lane, std::move(load.contents.dmabufs), options));
  if (!copy.note.empty()) note(Level::Warning, load.pages().describe() + ": " + copy.note);
  load.outcome.pinned_bytes = copy.pinned_bytes;
  return std::move(copy.stage);
}

Result<Stage*> ContentsJob::own_checksum(Load& load, Lane& lane) {
  // Upstream's plugin wrote garbage there in images of render files. With sums, headers are compared anyway.
  const bool check_headers = !load.pages().drm_minor || load.has_sums;
  std::function<bool(std::uint32_t, std::uint64_t, std::span<std::byte>)> again;
  // What another file should have had. Rare: that file is damaged.
  if (reads_once(load) && !load.sidecar->replicas_left_out)
    again = [this, &load](std::uint32_t file, std::uint64_t offset, std::span<std::byte> into) {
      return read_bytes(*shared_.store.directory(), load.sidecar->pages_files[file], offset, into);
    };
  SLUICE_TRY_ASSIGN(
      std::unique_ptr<Stage> checksum,
      make_checksum(
          lane, direction_, load.has_sums ? std::span(load.sidecar->tables) : std::span<SumTable>(),
          ChecksumOptions{.detect_zero_units = config_.zero_holes,
                          .check_headers = check_headers,
                          .match = load.match.get(),
                          .leads = load.replicas ? load.replicas->leads() : nullptr,
                          .read_again = again},
          [this, &load](std::uint32_t file, std::uint64_t offset, std::uint64_t length) {
            std::string text = load.pages().describe(id_, load.layout, Chunk{0, offset, length, file});
            return load.extents != nullptr ? text + load.extents->describe(file, offset) : text;
          },
          load.has_sums ? shared_.world.spare_workers(shared_.lanes) : 0));
  return &lane.own(std::move(checksum));
}

// Null where nothing is cloned.
Result<std::unique_ptr<ExtentCloner>> ContentsJob::make_cloner(Load& load, const Lane& lane) {
  if (!load.match || !load.match->shares_extents()) return std::unique_ptr<ExtentCloner>();
  return ExtentCloner::start(
      {.runs = [&load](std::uint32_t file) { return load.match->clones(file); },
       .ready = [this, &load] { return load.match->wait_for_leaders([this] { return is_stopped(); }); },
       .sums = {&load.layout, load.sidecar->tables},
       .stopped = &shared_.stopped,
       .on_refusal =
           [this](const Error& why) {
             if (shared_.warned.clone_refused.exchange(true)) return;
             note(Level::Warning, formatted("{}; such parts are copied instead [SL-C91]", why.what));
           }},
      lane);
}

Result<PagesStage> ContentsJob::make_store(Load& load, Lane& lane, ExtentCloner* cloner) {
  const bool dumps = direction_ == Direction::Dump;
  const bool once = reads_once(load);
  const FileOptions options{.io_mode = config_.io_mode,
                            .holes = config_.zero_holes,
                            .sync = config_.sync,
                            .reuse = config_.reuse_files,
                            .cloner = cloner,
                            .share = &shared_.disk,
                            .turn = load.files.turn,
                            .reader = load.reader.get(),
                            .most_on_disk = most_on_disk(lane.slot_count())};
  if (const auto directory = shared_.store.directory();
      !dumps && directory && (load.sidecar->needs().any() || once)) {
    SLUICE_TRY_ASSIGN(
        std::vector<ExtentMap> maps,
        extents_of(*directory, shared_.parents, once ? shared_.read_by_several : ReadBySeveral(), load.layout,
                   *load.sidecar));
    ExtentSource& files =
        lane.own(std::make_unique<ExtentSource>(std::move(maps), load.layout, lane.reactor(), options));
    load.extents = &files;
    return PagesStage{&files, &files, nullptr};
  }
  return shared_.store.pages(direction_, lane, dumps ? load.files.names : load.pages().pages_names(id_),
                             options);
}

// Restore: whether files are read once for several lanes. Only compared data may come from another file than
// one's own.
bool ContentsJob::reads_once(const Load& load) const {
  return direction_ == Direction::Restore && load.has_sums && config_.dedup != settings::Dedup::Off &&
         !shared_.store.one_way() && !load.pages().drm_minor &&
         has_shared_files(*load.sidecar, shared_.read_by_several);
}

Result<void> ContentsJob::look_at_vram(const Load& load, LaneGpu& gpu) {
  SLUICE_TRY_ASSIGN(const std::uint32_t losses, gpu.vram_losses());
  return shared_.vram.look(load.contents.render_minor, losses);
}

bool ContentsJob::ends_within(std::uint64_t ns) {
  Lock lock(mutex_);
  const std::uint64_t end_ns = shared_.world.now_ns() + ns;
  while (running_ > 0 && shared_.world.now_ns() < end_ns) shared_.world.wait(lock, lane_ended_, end_ns);
  return running_ == 0;
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
    std::vector<std::string> pages = load->pages().names_with(id, *load->sidecar);
    std::move(pages.begin(), pages.end(), std::back_inserter(names));
    names.push_back(load->pages().sums_name(id));
  }
  return names;
}

std::vector<std::string> ContentsJob::replica_files() const {
  std::set<std::string> names;
  for (const auto& load : loads_) names.merge(files_with_much_of(*load->sidecar));
  return {names.begin(), names.end()};
}

Result<void> ContentsJob::commit(int id) {
  for (const auto& load : loads_) {
    SLUICE_TRY(shared_.replicas.name_runs(*load->sidecar, load->pages().describe()));
    std::vector<std::string> names = load->pages().names_with(id, *load->sidecar);
    if (load->pages().drm_minor == std::nullopt)
      shared_.replicas.name(load->files.names.front(), names.front());
    if (load->has_sums) {
      load->sidecar->pages_files = names;
      SLUICE_TRY(shared_.store.save(load->pages().sums_name(id),
                                    pack_sidecar(*load->sidecar, shared_.store.keys()), config_.sync));
    }
    if (!load->sink) continue;
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
