// SPDX-License-Identifier: MIT
#include "plugin/contents.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "drm/device.h"
#include "drm/sdma_copy.h"
#include "pipeline/arena.h"
#include "pipeline/units.h"
#include "pipeline/uring_reactor.h"
#include "plugin/image_files.h"

namespace sluice::plugin {

namespace {

constexpr auto kProgressPeriod = std::chrono::seconds(1);

std::string gpu_words(std::uint32_t gpu_id) {
  char text[32];
  (void)std::snprintf(text, sizeof text, "GPU 0x%04" PRIx32, gpu_id);
  return text;
}

}  // namespace

// Everything of one lane. The members the lane's thread makes for itself (arena, ring, device, stages) live
// on its stack, in run_lane(); what outlives the thread is here.
struct ContentsJob::Lane {
  Lane(GpuContents contents, ImageLayout its_layout)
      : gpu(std::move(contents)), layout(std::move(its_layout)) {}

  GpuContents gpu;
  ImageLayout layout;
  Sidecar sidecar;  // restore: as read; dump: filled by the lane
  bool has_sums = false;
  std::unique_ptr<FileSink> sink;  // dump: finished by the lane, committed by commit()
  GpuOutcome outcome;
  std::atomic<std::uint64_t> chunks_done{0};
  std::optional<LaneThread> thread;
};

ContentsJob::ContentsJob(Direction direction, int image_dir, int id, const Config& config,
                         const DumpId& dump_id)
    : direction_(direction), image_dir_(image_dir), id_(id), config_(config), dump_id_(dump_id) {}

ContentsJob::~ContentsJob() {
  cancel();
  lanes_.clear();  // joins
}

Result<std::unique_ptr<ContentsJob>> ContentsJob::start(Direction direction, int image_dir, int id,
                                                        std::vector<GpuContents> gpus, const Config& config,
                                                        const DumpId& dump_id) {
  std::unique_ptr<ContentsJob> job(new ContentsJob(direction, image_dir, id, config, dump_id));
  for (GpuContents& gpu : gpus) {
    std::vector<std::uint64_t> sizes;
    sizes.reserve(gpu.bos.size());
    for (const ContentBo& bo : gpu.bos) sizes.push_back(bo.bytes);
    SLUICE_TRY_ASSIGN(ImageLayout layout, ImageLayout::make(sizes, config.chunk_bytes));
    Sidecar sidecar;
    bool has_sums = false;
    if (direction == Direction::Dump) {
      has_sums = config.checksum;
      sidecar.table = SumTable::sized(layout.file_bytes(), kSumBlockBytes);
      sidecar.bo_table_digest = gpu.bo_table_digest;
      sidecar.dump_id = dump_id;
      sidecar.pages_file = pages_image_name(id, gpu.gpu_id);
    } else if (config.checksum) {
      SLUICE_TRY_ASSIGN(has_sums, job->read_sidecar(gpu, layout, sidecar));
      if (has_sums && sidecar.table.block_bytes > config.chunk_bytes) {
        SLUICE_TRY_ASSIGN(layout, ImageLayout::make(sizes, sidecar.table.block_bytes));
      }
    }
    auto lane = std::make_unique<Lane>(std::move(gpu), std::move(layout));
    lane->sidecar = std::move(sidecar);
    lane->has_sums = has_sums;
    job->lanes_.push_back(std::move(lane));
  }
  job->running_ = job->lanes_.size();
  for (std::size_t i = 0; i < job->lanes_.size(); ++i) {
    Lane& lane = *job->lanes_[i];
    auto thread =
        LaneThread::start("sluice-" + std::to_string(lane.gpu.render_minor),
                          [job = job.get(), &lane]() -> Result<void> { return job->run_and_report(lane); });
    if (!thread) {
      job->cancel();
      return std::move(thread).error();  // the job's destructor joins those that run
    }
    lane.thread.emplace(std::move(*thread));
  }
  return job;
}

// Whether there are sums for the GPU's pages file; those that belong to another dump or table are an error.
Result<bool> ContentsJob::read_sidecar(const GpuContents& gpu, const ImageLayout& layout, Sidecar& sidecar) {
  const std::string name = sums_image_name(id_, gpu.gpu_id);
  const std::string pages = pages_image_name(id_, gpu.gpu_id);
  auto payload = read_image(image_dir_, name);
  if (!payload) {
    if (payload.error().err != ENOENT) return std::move(payload).error();
    note(Level::Warning,
         pages + " has no checksums (" + name + " is missing): its contents are restored unverified");
    return false;
  }
  SLUICE_TRY_ASSIGN(sidecar, unpack_sidecar(*payload, name));
  const bool same_dump = dump_id_ == DumpId{} || sidecar.dump_id == dump_id_;
  if (!same_dump || sidecar.bo_table_digest != gpu.bo_table_digest ||
      sidecar.table.file_bytes != layout.file_bytes() || sidecar.pages_file != pages) {
    return make_error(EBADMSG, name + " belongs to another dump than " + kfd_image_name(id_) +
                                   "; the image directory mixes two dumps");
  }
  return true;
}

Result<void> ContentsJob::run_and_report(Lane& lane) {
  const auto began = std::chrono::steady_clock::now();
  Result<void> result = [&]() -> Result<void> {
    try {
      return run_lane(lane);
    } catch (const std::bad_alloc&) {
      return Error{ENOMEM, "out of memory in the lane of " + gpu_words(lane.gpu.gpu_id)};
    }
  }();
  lane.outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  const std::lock_guard lock(mutex_);
  if (!result && !failed_) {
    failed_ = true;
    first_error_ = result.error();
    cancelled_ = true;
  }
  --running_;
  lane_ended_.notify_all();
  return result;
}

Result<void> ContentsJob::run_lane(Lane& lane) {
  const ImageLayout& layout = lane.layout;
  const auto slot_count =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(config_.slots(), layout.chunk_count()));
  // Made in this order, so destroyed in the other: stages first, then what they use.
  SLUICE_TRY_ASSIGN(StagingArena arena,
                    StagingArena::make(layout.chunk_bytes(), slot_count, lane.gpu.numa_node));
  std::string reactor_note;
  SLUICE_TRY_ASSIGN(
      const std::unique_ptr<Reactor> reactor,
      make_reactor(slot_count * static_cast<unsigned>(kOpsPerSlot), arena.bytes(), reactor_note));
  if (!reactor_note.empty()) note(Level::Warning, gpu_words(lane.gpu.gpu_id) + ": " + reactor_note);
  std::vector<Slot> slots(slot_count);
  for (std::uint32_t i = 0; i < slot_count; ++i) {
    slots[i].index = i;
    slots[i].buffer = arena.buffer(i);
  }

  SLUICE_TRY_ASSIGN(const drm::Device device,
                    drm::Device::open(drm::Device::render_node(lane.gpu.render_minor)));
  std::vector<drm::BoSource> bos;
  bos.reserve(lane.gpu.bos.size());
  for (ContentBo& bo : lane.gpu.bos) bos.push_back({std::move(bo.dmabuf), bo.bytes});
  SLUICE_TRY_ASSIGN(const std::unique_ptr<drm::SdmaCopy> copy,
                    drm::SdmaCopy::make(device, direction_, layout, std::move(bos), arena, slots, *reactor));
  if (!copy->staging_note().empty())
    note(Level::Warning, gpu_words(lane.gpu.gpu_id) + ": " + copy->staging_note());

  std::unique_ptr<SlotWorkers> workers;
  if (const unsigned threads = lane.has_sums ? spare_workers(lanes_.size()) : 0; threads > 0) {
    SLUICE_TRY_ASSIGN(workers, SlotWorkers::start("sluice-sum", threads, slot_count));
  }
  ChecksumStage checksum(
      direction_, layout, *reactor, lane.has_sums ? &lane.sidecar.table : nullptr,
      ChecksumOptions{config_.zero_holes},
      [this, &lane](std::uint64_t offset, std::uint64_t length) { return describe(lane, offset, length); },
      std::move(workers));
  const FileOptions file_options{config_.io_mode, config_.zero_holes, config_.sync, config_.reuse_files,
                                 &disk_};
  const std::string pages = pages_image_name(id_, lane.gpu.gpu_id);
  std::unique_ptr<FileSource> source;
  std::array<Stage*, 3> route{};
  if (direction_ == Direction::Dump) {
    SLUICE_TRY_ASSIGN(lane.sink, FileSink::create(image_dir_, pages, layout, *reactor, file_options));
    route = {copy.get(), &checksum, lane.sink.get()};
    lane.outcome.direct_io = lane.sink->direct();
  } else {
    SLUICE_TRY_ASSIGN(source, FileSource::open(image_dir_, pages, layout, *reactor, file_options));
    route = {source.get(), &checksum, copy.get()};
    lane.outcome.direct_io = source->direct();
  }

  Pipeline pipeline(layout, slots, route, *reactor);
  SLUICE_TRY_ASSIGN(lane.outcome.stats,
                    pipeline.run([&lane](std::uint64_t done, std::uint64_t) { lane.chunks_done = done; },
                                 [this] { return cancelled_.load(); }));
  lane.outcome.gpu_id = lane.gpu.gpu_id;
  lane.outcome.bos = lane.gpu.bos.size();
  lane.outcome.bytes = layout.payload_bytes();
  lane.outcome.zero_bytes = lane.outcome.stats.zero_bytes;
  lane.outcome.io_bytes = layout.file_bytes() - lane.outcome.stats.zero_bytes;
  lane.outcome.pinned_bytes = copy->stats().pinned_bytes;
  lane.outcome.verified = direction_ == Direction::Restore && lane.has_sums;
  return {};
}

Result<void> ContentsJob::wait(const std::function<void(const std::string&)>& report) {
  std::uint64_t chunks_total = 0;
  for (const auto& lane : lanes_) chunks_total += lane->layout.chunk_count();
  {
    std::unique_lock lock(mutex_);
    while (!lane_ended_.wait_for(lock, kProgressPeriod, [this] { return running_ == 0; })) {
      std::uint64_t chunks_done = 0;
      for (const auto& lane : lanes_) chunks_done += lane->chunks_done;
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
      lock.lock();
    }
  }
  for (const auto& lane : lanes_) {
    if (lane->thread) (void)lane->thread->join();  // its result is in first_error_ already
    lane->thread.reset();
    outcomes_.push_back(lane->outcome);
  }
  if (failed_) return first_error_;
  return {};
}

Result<void> ContentsJob::commit() {
  for (const auto& lane : lanes_) {
    if (lane->has_sums) {
      SLUICE_TRY(write_image(image_dir_, sums_image_name(id_, lane->gpu.gpu_id), pack_sidecar(lane->sidecar),
                             config_.sync));
    }
    SLUICE_TRY(lane->sink->commit());
  }
  return {};
}

LogLines ContentsJob::take_log_lines() {
  const std::lock_guard lock(mutex_);
  return std::exchange(log_lines_, {});
}

void ContentsJob::note(Level level, std::string text) {
  const std::lock_guard lock(mutex_);
  log_lines_.push_back({level, std::move(text)});
}

// Names the file and the BOs of a file range: the first one, and how many more.
std::string ContentsJob::describe(const Lane& lane, std::uint64_t file_offset, std::uint64_t length) const {
  ImageLayout::PieceCursor pieces = lane.layout.pieces(Chunk{0, file_offset, length});
  std::string text;
  std::uint64_t more = 0;
  for (Piece piece; pieces.next(piece);) {
    if (piece.is_header()) continue;
    if (!text.empty()) {
      ++more;
      continue;
    }
    char line[128];
    (void)std::snprintf(line, sizeof line,
                        "%s BO %" PRIu32 " (VA 0x%" PRIx64 ", %" PRIu64 " bytes) from its byte %" PRIu64,
                        gpu_words(lane.gpu.gpu_id).c_str(), piece.bo, lane.gpu.bos[piece.bo].va,
                        lane.gpu.bos[piece.bo].bytes, piece.bo_offset);
    text = line;
  }
  if (more > 0) text += " and " + std::to_string(more) + " more BOs";
  return pages_image_name(id_, lane.gpu.gpu_id) + ", " + (text.empty() ? "its length" : text);
}

}  // namespace sluice::plugin
