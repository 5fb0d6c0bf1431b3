// SPDX-License-Identifier: MIT
// See sdma_copy.h.
#include "drm/sdma_copy.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/units.h"

namespace sluice::drm {
namespace {

using namespace std::chrono_literals;

// userptr registration fails for a moment when the kernel moves the pages (compaction, huge page collapse).
constexpr int kUserptrAttempts = 6;
// A submission blocks in the kernel when an entity holds 32 jobs (module parameter sched_jobs); stay well
// below.
constexpr std::uint32_t kJobsPerEntity = 16;
// How long a fence is waited for before it is seen whether the copy goes on at all.
constexpr std::chrono::nanoseconds kListenPeriod = 100ms;
// What a job has where the copy does not go on: one that was launched just before is no lost one.
constexpr std::chrono::nanoseconds kStoppedTimeout = 100ms;
constexpr std::uint32_t kNone = UINT32_MAX;

std::string in_milliseconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(time).count()) + " ms";
}

// `error` with the object it met put in front, and what can be done about it behind.
Error copy_error(const std::string& object, const Error& error) {
  Error explained = explain(object, error);
  if (error.err == ENOMEM)
    explained.what += " (GPU or system memory is full: stop its other users, or use smaller staging)";
  if (error.err == EMFILE) explained.what += " (raise the limit of open files, ulimit -n)";
  if (error.err == ECANCELED) explained.what += " (the GPU was reset: try again)";
  return explained;
}

}  // namespace

// A BO between its first piece and its last.
struct SdmaCopy::LiveBo {
  Bo bo;
  VaMapping mapping;  // after bo: unmapped before it is freed
  std::uint64_t chunks_left = 0;
  std::uint32_t next_free = kNone;
};

// Runs its jobs in order: one that hangs holds up all behind it.
struct SdmaCopy::Entity {
  Context* context;
  std::uint32_t ring;
  std::uint32_t jobs = 0;  // in flight
};

// What a slot has in flight on the GPU.
struct SdmaCopy::Flight {
  bool active = false;  // a job was queued and its end was not seen yet
  Entity* entity = nullptr;
  Job job;
  UniqueFd fence;  // none until it was asked for, or where it is not to be had
  std::chrono::steady_clock::time_point launched;
};

// Members in order of acquisition; they go in the reverse order.
struct SdmaCopy::Hardware {
  explicit Hardware(const Device& device_of_all) : device(device_of_all), list(0) {}

  struct Source {
    UniqueFd dmabuf;
    std::uint32_t live = kNone;  // index into `live`
    bool done = false;
  };

  Device device;
  Staging staging = Staging::Userptr;
  std::string note;
  Bo staging_bo;
  VaMapping staging_map;
  Bo ib_bo;
  VaMapping ib_map;
  std::uint64_t ib_bytes = 0;  // per slot
  std::vector<Context> contexts;
  std::vector<Entity> entities;
  std::vector<Source> sources;
  std::vector<LiveBo> live;  // sized once
  std::uint32_t free_live = kNone;
  std::uint32_t live_count = 0;
  BoList list;
  std::vector<Flight> flights;  // by slot index

  // What was kept for ever hangs here, so that it is not a leak by accident.
  Hardware* next_kept = nullptr;
};

SdmaCopy::SdmaCopy(const Device& device, Direction direction, const ImageLayout& layout, StagingArena& arena,
                   std::span<Slot> slots, Reactor& reactor, const SdmaCopyOptions& options)
    : device_(device),
      direction_(direction),
      layout_(layout),
      arena_(arena),
      slots_(slots),
      reactor_(reactor),
      options_(options),
      hardware_(std::make_unique<Hardware>(device)) {}

Result<std::unique_ptr<SdmaCopy>> SdmaCopy::make(const Device& device, Direction direction,
                                                 const ImageLayout& layout, std::vector<BoSource> sources,
                                                 StagingArena& arena, std::span<Slot> slots, Reactor& reactor,
                                                 const SdmaCopyOptions& options) {
  auto stage =
      std::unique_ptr<SdmaCopy>(new SdmaCopy(device, direction, layout, arena, slots, reactor, options));
  SLUICE_TRY(stage->set_up(std::move(sources)));
  return stage;
}

SdmaCopy::~SdmaCopy() {
  try {
    for (const Flight& flight : hardware_->flights) {
      if (lost_) break;
      lost_ = flight.active && !ended(flight);
    }
  } catch (...) {  // std::bad_alloc
    lost_ = true;  // for all that is known
  }
  if (!lost_) return;
  // Something may still be copying: neither the memory nor the GPU's way to it may go.
  arena_.abandon();
  static std::atomic<Hardware*> kept{nullptr};
  Hardware* const hardware = hardware_.release();
  hardware->next_kept = kept.exchange(hardware);
}

Staging SdmaCopy::staging() const {
  return hardware_->staging;
}
const std::string& SdmaCopy::staging_note() const {
  return hardware_->note;
}

// ---- before the start
// ----------------------------------------------------------------------------------------

Result<void> SdmaCopy::set_up(std::vector<BoSource> sources) {
  Hardware& hw = *hardware_;
  if (sources.size() != layout_.bo_count()) {
    return make_error(EINVAL, "copy stage: " + std::to_string(sources.size()) + " sources for " +
                                  std::to_string(layout_.bo_count()) + " BOs");
  }
  hw.sources.resize(sources.size());
  for (std::uint32_t bo = 0; bo < sources.size(); ++bo) {
    if (sources[bo].bytes != layout_.bo_bytes(bo)) {
      return make_error(EINVAL, "copy stage: " + describe_bo(bo) + " has a source of " +
                                    std::to_string(sources[bo].bytes) + " bytes");
    }
    if (sources[bo].bytes == 0) {
      hw.sources[bo].done = true;
      ++finished_bos_;
    } else {
      hw.sources[bo].dmabuf = std::move(sources[bo].dmabuf);
    }
  }

  SLUICE_TRY(set_up_staging());

  std::uint64_t pieces_max = 0;
  const std::uint64_t dwords = ib_dwords_of_worst_chunk(pieces_max);
  if (dwords > kIbSegmentsMax * std::uint64_t{kIbDwordsMax} * 9 / 10) {
    return make_error(E2BIG, "copy stage: a chunk of " + std::to_string(layout_.chunk_bytes()) +
                                 " bytes needs more copy packets than one job may hold; use smaller chunks");
  }
  hw.ib_bytes = align_up(std::max<std::uint64_t>(dwords, kIbPaddingDwords) * sizeof(std::uint32_t),
                         device_.ib_alignment_bytes());
  SLUICE_TRY_ASSIGN(hw.ib_bo, Bo::allocate_gtt(device_, hw.ib_bytes * slots_.size()));
  SLUICE_TRY_ASSIGN(hw.ib_map, VaMapping::map(hw.ib_bo, GpuAccess::Execute));

  const std::span<const std::uint32_t> rings = device_.rings().first(
      std::min<std::size_t>(device_.rings().size(), std::max(1U, options_.rings_per_context)));
  const std::uint32_t contexts = std::max(1U, options_.contexts);
  hw.contexts.reserve(contexts);
  for (std::uint32_t i = 0; i < contexts; ++i) {
    SLUICE_TRY_ASSIGN(Context context, Context::make(device_));
    hw.contexts.push_back(std::move(context));
  }
  // Ring by ring: neighbours in the round-robin are of different contexts.
  for (const std::uint32_t ring : rings) {
    for (Context& context : hw.contexts) hw.entities.push_back({&context, ring});
  }

  // Between two chunks in flight only the BO at the admission frontier lives; see sdma_copy.h.
  const std::uint64_t live = std::min<std::uint64_t>(layout_.bo_count(), pieces_max * slots_.size() + 1);
  hw.live.resize(static_cast<std::size_t>(live));
  for (std::size_t i = hw.live.size(); i-- > 0;) {
    hw.live[i].next_free = hw.free_live;
    hw.free_live = static_cast<std::uint32_t>(i);
  }
  hw.list = BoList(static_cast<std::size_t>(pieces_max) + 2);
  hw.flights.resize(slots_.size());
  stats_.pinned_bytes = hw.staging_bo.bytes() + hw.ib_bo.bytes();
  return {};
}

Result<void> SdmaCopy::set_up_staging() {
  Hardware& hw = *hardware_;
  for (int attempt = 1;; ++attempt) {
    auto bo = Bo::from_user_memory(device_, arena_.bytes());
    if (bo) {
      hw.staging_bo = std::move(bo).value();
      auto map = VaMapping::map(hw.staging_bo, GpuAccess::ReadWrite);
      if (map) {
        hw.staging_map = std::move(map).value();
        return {};
      }
      return std::move(map).error();
    }
    const int err = bo.error().err;
    const bool passing = err == EBUSY || err == EFAULT;
    if (!passing || attempt == kUserptrAttempts) {
      hw.note = "the GPU cannot use the staging memory directly, the CPU copies (slower): " + bo.error().what;
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1 << (attempt - 1)));
  }
  hw.staging = Staging::CpuCopy;
  SLUICE_TRY_ASSIGN(hw.staging_bo, Bo::allocate_gtt(device_, arena_.bytes().size()));
  SLUICE_TRY_ASSIGN(hw.staging_map, VaMapping::map(hw.staging_bo, GpuAccess::ReadWrite));
  return {};
}

// Dump: exact. Restore: as if data and zeros changed at every unit.
std::uint64_t SdmaCopy::ib_dwords_of_worst_chunk(std::uint64_t& pieces_max) const {
  std::uint64_t dwords_max = 0;
  for (std::uint64_t index = 0; index < layout_.chunk_count(); ++index) {
    std::uint64_t pieces = 0;
    std::uint64_t copies = 0;
    Piece piece;
    for (auto at = layout_.pieces(layout_.chunk(index)); at.next(piece);) {
      if (piece.is_header()) continue;
      ++pieces;
      std::uint64_t packets = copy_packets(device_.generation(), piece.length);
      if (direction_ == Direction::Restore) {
        const std::uint64_t units = div_ceil(piece.buffer_offset + piece.length, kZeroUnitBytes) -
                                    piece.buffer_offset / kZeroUnitBytes;
        packets = std::max(packets, units);
      }
      copies += packets;
    }
    pieces_max = std::max(pieces_max, pieces);
    dwords_max = std::max(dwords_max, ib_dwords_for(copies, 0, device_.ib_alignment_bytes() / 4));
  }
  return dwords_max;
}

// ---- BOs
// -----------------------------------------------------------------------------------------------------

Result<SdmaCopy::LiveBo*> SdmaCopy::acquire(std::uint32_t bo) {
  Hardware& hw = *hardware_;
  Hardware::Source& source = hw.sources[bo];
  assert(!source.done);
  if (source.live != kNone) return &hw.live[source.live];

  const auto fail = [&](const Error& error) { return copy_error("copy " + describe_bo(bo), error); };
  auto imported = Bo::import(device_, std::move(source.dmabuf));
  if (!imported) return fail(imported.error());
  if (imported->bytes() < layout_.bo_bytes(bo)) {
    return fail(make_error(EINVAL, "its dma-buf holds " + std::to_string(imported->bytes()) + " bytes only"));
  }
  auto mapped =
      VaMapping::map(*imported, direction_ == Direction::Dump ? GpuAccess::Read : GpuAccess::ReadWrite);
  if (!mapped) return fail(mapped.error());

  assert(hw.free_live != kNone);
  source.live = hw.free_live;
  LiveBo& live = hw.live[source.live];
  hw.free_live = live.next_free;
  live.bo = std::move(imported).value();
  live.mapping = std::move(mapped).value();
  live.chunks_left = layout_.chunks_of_bo(bo);
  ++stats_.imported_bos;
  stats_.live_bos_peak = std::max(stats_.live_bos_peak, ++hw.live_count);
  return &live;
}

void SdmaCopy::release_pieces(const Chunk& chunk) {
  Hardware& hw = *hardware_;
  Piece piece;
  for (auto at = layout_.pieces(chunk); at.next(piece);) {
    if (piece.is_header()) continue;
    Hardware::Source& source = hw.sources[piece.bo];
    LiveBo& live = hw.live[source.live];
    if (--live.chunks_left > 0) continue;
    live.mapping = VaMapping();
    live.bo = Bo();
    live.next_free = hw.free_live;
    hw.free_live = source.live;
    source.live = kNone;
    source.done = true;
    --hw.live_count;
    ++finished_bos_;
  }
}

// ---- a chunk
// -------------------------------------------------------------------------------------------------

Result<Submit> SdmaCopy::submit(Slot& slot) {
  Hardware& hw = *hardware_;
  Entity& entity = next_entity();
  if (entity.jobs == kJobsPerEntity) return Submit::Busy;
  const std::size_t index = index_of(slot);
  assert(index < hw.flights.size() && !hw.flights[index].active);

  const auto memory = hw.ib_bo.cpu().subspan(static_cast<std::size_t>(index * hw.ib_bytes),
                                             static_cast<std::size_t>(hw.ib_bytes));
  IbBuilder ib(device_.generation(),
               {reinterpret_cast<std::uint32_t*>(memory.data()), memory.size() / sizeof(std::uint32_t)},
               device_.ib_alignment_bytes() / 4);
  SLUICE_TRY(encode(slot, ib));
  const std::span<const IbSegment> segments = ib.finish();
  if (segments.empty()) {
    reactor_.post(slot.op(), 0);  // a chunk of the header alone
    return Submit::Started;
  }
  SLUICE_TRY(launch(slot, entity, ib, segments));
  return Submit::Started;
}

// The one with the fewest jobs, so that one that hangs is given little; equals take turns.
SdmaCopy::Entity& SdmaCopy::next_entity() {
  std::vector<Entity>& entities = hardware_->entities;
  std::size_t next = turn_;
  for (std::size_t i = 0; i < entities.size(); ++i) {
    const std::size_t other = (turn_ + i) % entities.size();
    if (entities[other].jobs < entities[next].jobs) next = other;
  }
  turn_ = (next + 1) % entities.size();
  return entities[next];
}

Result<void> SdmaCopy::encode(Slot& slot, IbBuilder& ib) {
  Hardware& hw = *hardware_;
  const std::uint64_t staging =
      hw.staging_map.address() + static_cast<std::uint64_t>(slot.buffer.data() - arena_.bytes().data());
  hw.list.clear();
  hw.list.add(hw.staging_bo);
  hw.list.add(hw.ib_bo);
  Piece piece;
  for (auto at = layout_.pieces(slot.chunk); at.next(piece);) {
    if (piece.is_header()) {
      if (direction_ == Direction::Dump) {
        const std::uint64_t payload_bytes = layout_.payload_bytes(slot.chunk.file);
        std::memcpy(slot.buffer.data() + piece.buffer_offset,
                    reinterpret_cast<const std::byte*>(&payload_bytes) + piece.bo_offset, piece.length);
      }
      continue;
    }
    SLUICE_TRY_ASSIGN(LiveBo* const live, acquire(piece.bo));
    hw.list.add(live->bo);
    const std::uint64_t in_bo = live->mapping.address() + piece.bo_offset;
    if (direction_ == Direction::Dump) {
      ib.copy(in_bo, staging + piece.buffer_offset, piece.length);
      stats_.copied_bytes += piece.length;
    } else {
      encode_restore(slot, piece, in_bo, ib);
    }
  }
  return {};
}

// Cuts a piece into runs of data, copied, and of known zeros, filled. `target`: GPU address of the piece in
// its BO.
void SdmaCopy::encode_restore(Slot& slot, const Piece& piece, std::uint64_t target, IbBuilder& ib) {
  Hardware& hw = *hardware_;
  std::byte* const buffer = slot.buffer.data();
  const auto arena_offset = static_cast<std::uint64_t>(buffer - arena_.bytes().data());
  const std::uint64_t end = piece.buffer_offset + piece.length;
  for (std::uint64_t at = piece.buffer_offset; at < end;) {
    const bool zero = slot.zero_units[static_cast<std::size_t>(at / kZeroUnitBytes)];
    std::uint64_t stop = at;
    do {
      stop = std::min(end, align_down(stop, kZeroUnitBytes) + kZeroUnitBytes);
    } while (stop < end && slot.zero_units[static_cast<std::size_t>(stop / kZeroUnitBytes)] == zero);
    const std::uint64_t length = stop - at;
    if (zero && is_aligned(target, 4) && is_aligned(length, 4)) {
      ib.fill(target, length, 0);
      stats_.filled_bytes += length;
    } else {
      // The bytes of a hole are undefined in the buffer.
      if (zero) std::memset(buffer + at, 0, static_cast<std::size_t>(length));
      if (hw.staging == Staging::CpuCopy) {
        std::memcpy(hw.staging_bo.cpu().data() + arena_offset + at, buffer + at,
                    static_cast<std::size_t>(length));
      }
      ib.copy(hw.staging_map.address() + arena_offset + at, target, length);
      stats_.copied_bytes += length;
    }
    target += length;
    at = stop;
  }
}

Result<void> SdmaCopy::launch(Slot& slot, Entity& entity, IbBuilder& ib,
                              std::span<const IbSegment> segments) {
  Hardware& hw = *hardware_;
  const auto fail = [&](const Error& error) { return copy_error("copy " + describe(slot.chunk), error); };
  std::array<IbRange, kIbSegmentsMax> ranges;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    ranges[i] = {hw.ib_map.address() + index_of(slot) * hw.ib_bytes + std::uint64_t{segments[i].offset} * 4,
                 segments[i].dwords * 4};
  }
  auto job = entity.context->submit(entity.ring, hw.list, std::span(ranges).first(segments.size()));
  if (!job) return fail(job.error());

  // Before anything that may throw: the destructor has to know of it.
  Flight& flight = hw.flights[index_of(slot)];
  flight.active = true;
  flight.entity = &entity;
  flight.job = *job;
  flight.launched = std::chrono::steady_clock::now();
  ++entity.jobs;
  ++in_flight_;
  ++stats_.submissions;
  stats_.packets += ib.packets();
  auto fence = entity.context->fence(*job);
  if (!fence) {
    // The job runs and cannot be polled. Let it end: an error must leave nothing in flight.
    if (!ended(flight)) return lost(slot);
    retire(flight);
    return fail(fence.error());
  }
  flight.fence = std::move(fence).value();
  poll(slot, flight);
  return {};
}

void SdmaCopy::retire(Flight& flight) {
  flight.active = false;
  flight.fence.reset();
  --flight.entity->jobs;
  --in_flight_;
}

Result<Progress> SdmaCopy::advance(Slot& slot, Op& /*op*/, std::int32_t result) {
  Flight& flight = hardware_->flights[index_of(slot)];
  if (!flight.active) return Progress::Done;  // header only: it was posted

  if (result == -ETIME && time_left(flight) > 0ns) {
    poll(slot, flight);
    return Progress::Pending;
  }
  // A poll that failed or woke early is no answer; one that timed out gets a last look.
  if (result < 0 && !ended(flight)) return lost(slot);
  auto state = fence_state(flight.fence.get());
  if (state && !*state && ended(flight)) state = fence_state(flight.fence.get());
  if (state && !*state) return lost(slot);
  retire(flight);
  if (!state) {
    return copy_error("copy " + describe(slot.chunk) + " on " + device_.path(), state.error());
  }
  if (direction_ == Direction::Dump && hardware_->staging == Staging::CpuCopy) copy_from_staging_bo(slot);
  release_pieces(slot.chunk);
  return Progress::Done;
}

Result<void> SdmaCopy::finish() {
  if (finished_bos_ == layout_.bo_count() && in_flight_ == 0) return {};
  return make_error(EIO, "copy stage: only " + std::to_string(finished_bos_) + " of " +
                             std::to_string(layout_.bo_count()) + " BOs were copied");
}

void SdmaCopy::copy_from_staging_bo(const Slot& slot) {
  const auto arena_offset = static_cast<std::size_t>(slot.buffer.data() - arena_.bytes().data());
  const std::byte* const from = hardware_->staging_bo.cpu().data() + arena_offset;
  Piece piece;
  for (auto at = layout_.pieces(slot.chunk); at.next(piece);) {
    if (piece.is_header()) continue;
    std::memcpy(slot.buffer.data() + piece.buffer_offset, from + piece.buffer_offset,
                static_cast<std::size_t>(piece.length));
  }
}

// ---- trouble
// -------------------------------------------------------------------------------------------------

std::chrono::nanoseconds SdmaCopy::time_left(const Flight& flight) const {
  const std::chrono::nanoseconds taken = std::chrono::steady_clock::now() - flight.launched;
  const auto all = is_stopped() ? std::min(options_.fence_timeout, kStoppedTimeout) : options_.fence_timeout;
  return std::max(all - taken, std::chrono::nanoseconds(0));
}

void SdmaCopy::poll(Slot& slot, const Flight& flight) {
  reactor_.poll_readable(slot.op(), flight.fence.get(), std::min(time_left(flight), kListenPeriod));
}

// Blocks until the job ended, well or not; false if its time was over first.
bool SdmaCopy::ended(const Flight& flight) const {
  for (;;) {
    const auto step = std::min(time_left(flight), kListenPeriod);
    if (flight.fence) {
      pollfd wait{flight.fence.get(), POLLIN, 0};
      const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(step).count();
      const auto ready = TEMP_FAILURE_RETRY(::poll(&wait, 1, static_cast<int>(milliseconds)));
      if (ready != 0) return ready > 0;
    } else {
      const auto over = flight.entity->context->wait(flight.job, step);
      if (!over || *over) return over.ok();
    }
    if (step == 0ns) return false;
  }
}

// The job of `slot` may write for ever: everything it can reach stays.
Error SdmaCopy::lost(const Slot& slot) {
  lost_ = true;
  arena_.abandon();
  const std::string what = "copy " + describe(slot.chunk) + " on " + device_.path();
  if (is_stopped()) return Error{ECANCELED, what + ": stopped while the GPU was at it"};
  return make_error(ETIMEDOUT, what + ": the GPU did not finish within " +
                                   in_milliseconds(options_.fence_timeout) +
                                   "; staging memory and buffers stay mapped until this process ends, the "
                                   "kernel log says whether the engine hangs");
}

std::string SdmaCopy::describe_bo(std::uint32_t bo) const {
  return "BO " + std::to_string(bo) + " (" + std::to_string(layout_.bo_bytes(bo)) + " bytes)";
}

// "chunk 17, BO 3 [4182008, 8376312) to BO 5"
std::string SdmaCopy::describe(const Chunk& chunk) const {
  std::string text = "chunk " + std::to_string(chunk.index);
  Piece piece;
  std::uint32_t first = kNone;
  std::uint32_t last = kNone;
  for (auto at = layout_.pieces(chunk); at.next(piece);) {
    if (piece.is_header()) continue;
    if (first == kNone) {
      first = piece.bo;
      text += ", " + describe_bo(first) + " [" + std::to_string(piece.bo_offset) + ", " +
              std::to_string(piece.bo_offset + piece.length) + ")";
    }
    last = piece.bo;
  }
  if (last != first) text += " to BO " + std::to_string(last);
  return text;
}

}  // namespace sluice::drm
