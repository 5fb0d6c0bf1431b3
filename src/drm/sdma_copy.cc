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
#include <utility>

#include "base/format.h"
#include "base/units.h"
#include "drm/sdma_hardware.h"
#include "drm/sdma_words.h"

namespace sluice::drm {
namespace {

using namespace std::chrono_literals;

// A submission blocks in the kernel when an entity has 32 jobs (module parameter sched_jobs); stay well
// below.
constexpr std::uint32_t kJobsPerEntity = 16;
// How long to wait for a fence between checks whether the copy goes on.
constexpr std::chrono::nanoseconds kListenPeriod = 100ms;
// A job's time once the copy is stopped: one launched just before is not lost.
constexpr std::chrono::nanoseconds kStoppedTimeout = 100ms;

std::string in_milliseconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(time).count()) + " ms";
}

// How long a chunk waits before it asks again for a BO.
constexpr std::chrono::nanoseconds kTurnPeriod = 20ms;

void clear(const Slot& slot, const Piece& piece) {
  std::memset(slot.buffer.data() + piece.buffer_offset, 0, static_cast<std::size_t>(piece.length));
}

// The pieces of a part of a chunk, at their places in the chunk's buffer.
class PiecesOfPart {
 public:
  PiecesOfPart(const ImageLayout& layout, const Chunk& chunk, const Chunk& part)
      : at_(layout.pieces(part)), shift_(part.file_offset - chunk.file_offset) {}

  bool next(Piece& piece) {
    if (!at_.next(piece)) return false;
    piece.buffer_offset += shift_;
    return true;
  }

 private:
  ImageLayout::PieceCursor at_;
  std::uint64_t shift_;
};

}  // namespace

SdmaCopy::~SdmaCopy() {
  if (options_.giver != nullptr) options_.giver->set_imported(nullptr);
  try {
    for (const Flight& flight : hardware_->flights) {
      if (lost_) break;
      lost_ = flight.active && !ended(flight);  // unreached: a race
    }
  } catch (...) {  // std::bad_alloc
    lost_ = true;  // unreached: out of memory
  }
  if (!lost_) return;
  // Something may still be copying: the memory and the GPU's mapping must stay.
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

// For a piece of it. Null: its turn has not come.
Result<SdmaCopy::LiveBo*> SdmaCopy::acquire(std::uint32_t bo) {
  Hardware& hw = *hardware_;
  Hardware::Source& source = hw.sources[bo];
  assert(!source.done);
  if (source.live != kNone) {
    LiveBo& live = hw.live[source.live];
    const Lock lock(imported_);
    ++live.users;
    return &live;
  }
  assert(hw.free_live != kNone);
  LiveBo& live = hw.live[hw.free_live];
  {
    const Lock lock(imported_);
    source.live = std::exchange(hw.free_live, live.next_free);
    live.users = 1;
    live.given_up = false;
  }
  auto reached = reach(bo, live);
  if (!reached || !*reached) {
    const Lock lock(imported_);
    live.next_free = std::exchange(hw.free_live, std::exchange(source.live, kNone));
    if (!reached) return std::move(reached).error();
    return static_cast<LiveBo*>(nullptr);
  }
  live.chunks_left = layout_.chunks_of_bo(bo);
  ++stats_.imported_bos;
  stats_.live_bos_peak = std::max(stats_.live_bos_peak, ++hw.live_count);
  return &live;
}

// Imports and maps it; false: its turn has not come. If that fails and giving up is allowed, the BO is given
// up.
Result<bool> SdmaCopy::reach(std::uint32_t bo, LiveBo& live) {
  UniqueFd dmabuf = std::move(hardware_->sources[bo].dmabuf);
  if (options_.giver != nullptr) {
    const BoSource::Turn turn = options_.giver->take(bo, dmabuf);
    if (turn == BoSource::Turn::Later) return false;
    const Lock lock(imported_);
    live.given_up = live.given_up || turn == BoSource::Turn::GivenUp;
    if (live.given_up) return true;
  }
  Bo imported;
  VaMapping mapping;
  const auto reached = [&]() -> Result<void> {
    SLUICE_TRY_ASSIGN(imported, Bo::import(device_, std::move(dmabuf)));
    if (imported.bytes() < layout_.bo_bytes(bo)) {
      return make_error(EINVAL, "its dma-buf holds " + std::to_string(imported.bytes()) + " bytes only");
    }
    SLUICE_TRY_ASSIGN(
        mapping,
        VaMapping::map(imported, direction_ == Direction::Dump ? GpuAccess::Read : GpuAccess::ReadWrite));
    return {};
  }();
  if (!reached && options_.giver == nullptr)
    return copy_error("copy " + describe_bo(layout_, bo), reached.error());
  {
    const Lock lock(imported_);
    live.given_up = live.given_up || !reached;
    if (!live.given_up) {
      live.bo = std::move(imported);
      live.mapping = std::move(mapping);
    }
  }
  if (options_.giver == nullptr) return true;
  if (reached) {
    options_.giver->note_imported(bo);
  } else {
    options_.giver->note_given_up(bo);
  }
  return true;
}

void SdmaCopy::let_go(std::uint32_t bo) {
  const Lock lock(imported_);
  const std::uint32_t at = hardware_->sources[bo].live;
  if (at == kNone) return;
  LiveBo& live = hardware_->live[at];
  live.given_up = true;
  if (live.users == 0) live.let_go();
}

bool SdmaCopy::is_given_up(const LiveBo& live) {
  const Lock lock(imported_);
  return live.given_up;
}

// Gives up all BOs of the slot's part, which nothing copies any more. Their maps stay: other chunks may be
// in flight.
void SdmaCopy::give_up(const Slot& slot) {
  Piece piece;
  for (PiecesOfPart at(layout_, slot.chunk, hardware_->flights[index_of(slot)].part); at.next(piece);) {
    if (piece.is_header()) continue;
    bool was_given_up = false;
    {
      const Lock lock(imported_);
      was_given_up = std::exchange(hardware_->live_of(piece.bo).given_up, true);
    }
    if (!was_given_up) options_.giver->note_given_up(piece.bo);
    clear(slot, piece);
  }
}

void SdmaCopy::release_pieces(const Slot& slot) {
  Piece piece;
  for (PiecesOfPart at(layout_, slot.chunk, hardware_->flights[index_of(slot)].part); at.next(piece);) {
    if (!piece.is_header()) release(piece.bo);
  }
}

// A piece of it.
void SdmaCopy::release(std::uint32_t bo) {
  Hardware& hw = *hardware_;
  {
    const Lock lock(imported_);
    Hardware::Source& source = hw.sources[bo];
    LiveBo& live = hw.live[source.live];
    --live.users;
    if (--live.chunks_left > 0) {
      if (live.given_up && live.users == 0) live.let_go();
      return;
    }
    live.let_go();
    live.next_free = hw.free_live;
    hw.free_live = source.live;
    source.live = kNone;
    source.done = true;
  }
  --hw.live_count;
  ++finished_bos_;
  if (options_.giver != nullptr) options_.giver->note_done(bo);
}

Result<Submit> SdmaCopy::submit(Slot& slot) {
  if (hardware_->next_entity().jobs == kJobsPerEntity) return Submit::Busy;
  assert(index_of(slot) < hardware_->flights.size() && !hardware_->flights[index_of(slot)].active);
  hardware_->flights[index_of(slot)].part = {slot.chunk.index, slot.chunk.file_offset, 0, slot.chunk.file};
  if (const auto early = take_time(slot.chunk); early > 0ns) {
    wait(slot, early);
    return Submit::Started;
  }
  SLUICE_TRY(start(slot));
  return Submit::Started;
}

void SdmaCopy::wait(Slot& slot, std::chrono::nanoseconds time) {
  hardware_->flights[index_of(slot)].waits = true;
  reactor_.poll_readable(slot.op(), never_readable_.get(), time);
}

// How long the chunk has to wait; its bytes count from now on.
std::chrono::nanoseconds SdmaCopy::take_time(const Chunk& chunk) {
  if (options_.bytes_per_second == 0) return 0ns;
  const std::uint64_t now_ns = reactor_.now_ns();
  const std::uint64_t begin_ns = std::max(now_ns, next_start_ns_);
  const double seconds = static_cast<double>(chunk.length) / static_cast<double>(options_.bytes_per_second);
  next_start_ns_ = begin_ns + static_cast<std::uint64_t>(seconds * 1e9);
  return std::chrono::nanoseconds(begin_ns - now_ns);
}

// A copy of the slot's chunk, or of its next part, on the entity with the fewest jobs.
Result<void> SdmaCopy::start(Slot& slot) {
  Hardware& hw = *hardware_;
  const std::size_t index = index_of(slot);
  const auto memory = hw.ib_bo.cpu().subspan(static_cast<std::size_t>(index * hw.ib_bytes),
                                             static_cast<std::size_t>(hw.ib_bytes));
  IbBuilder ib(device_.generation(),
               {reinterpret_cast<std::uint32_t*>(memory.data()), memory.size() / sizeof(std::uint32_t)},
               device_.ib_alignment_bytes() / 4);
  SLUICE_TRY(encode(slot, ib));
  if (hw.flights[index].part.length == 0) {
    if (abandoned_ || is_stopped()) return Error{ECANCELED, "cancelled"};
    wait(slot, kTurnPeriod);
    return {};
  }
  const std::span<const IbSegment> segments = ib.finish();
  if (!segments.empty()) {
    Entity& entity = hw.next_entity();
    hw.turn = (static_cast<std::size_t>(&entity - hw.entities.data()) + 1) % hw.entities.size();
    auto launched = launch(slot, entity, ib, segments);
    if (launched || lost_ || options_.giver == nullptr) return launched;
    give_up(slot);
  }
  reactor_.post(slot.op(), 0);  // nothing to copy: only the header, or BOs that were given up
  return {};
}

// What follows the last part, up to a BO whose turn has not come.
Result<void> SdmaCopy::encode(Slot& slot, IbBuilder& ib) {
  Hardware& hw = *hardware_;
  const std::uint64_t staging =
      hw.staging_map.address() + static_cast<std::uint64_t>(slot.buffer.data() - arena_.bytes().data());
  hw.list.clear();
  hw.list.add(hw.staging_bo);
  hw.list.add(hw.ib_bo);
  Chunk& part = hw.flights[index_of(slot)].part;
  part.file_offset += part.length;
  part.length = slot.chunk.file_offset + slot.chunk.length - part.file_offset;
  Piece piece;
  for (PiecesOfPart at(layout_, slot.chunk, part); at.next(piece);) {
    if (piece.is_header()) {
      if (direction_ == Direction::Dump) {
        const std::uint64_t payload_bytes = layout_.payload_bytes(slot.chunk.file);
        std::memcpy(slot.buffer.data() + piece.buffer_offset,
                    reinterpret_cast<const std::byte*>(&payload_bytes) + piece.bo_offset, piece.length);
      }
      continue;
    }
    SLUICE_TRY_ASSIGN(LiveBo* const live, acquire(piece.bo));
    if (live == nullptr) {
      part.length = slot.chunk.file_offset + piece.buffer_offset - part.file_offset;
      return {};
    }
    if (is_given_up(*live)) {
      clear(slot, piece);
      continue;
    }
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

// Splits a piece into runs of data, which are copied, and known zeros, which are filled. `target`: GPU
// address of the piece in its BO.
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
  const auto fail = [&](const Error& error) {
    return copy_error("copy " + describe(layout_, slot.chunk), error);
  };
  std::array<IbRange, kIbSegmentsMax> ranges;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    ranges[i] = {hw.ib_map.address() + index_of(slot) * hw.ib_bytes + std::uint64_t{segments[i].offset} * 4,
                 segments[i].dwords * 4};
  }
  auto job = entity.context->submit(entity.ring, hw.list, std::span(ranges).first(segments.size()));
  if (!job) return fail(job.error());

  // Before anything that may throw, because the destructor has to know of it.
  Flight& flight = hw.flights[index_of(slot)];
  flight.active = true;
  flight.entity = &entity;
  flight.job = *job;
  flight.launched_ns = reactor_.now_ns();
  ++entity.jobs;
  ++in_flight_;
  ++stats_.submissions;
  stats_.packets += ib.packets();
  auto fence = entity.context->fence(*job);
  if (!fence) {
    // The job runs and cannot be polled. Wait for it: an error must leave nothing in flight.
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
  if (std::exchange(flight.waits, false)) {
    SLUICE_TRY(start(slot));
    return Progress::Pending;
  }
  if (!flight.active) return end_part(slot);  // it was posted

  if (result == -ETIME && time_left(flight) > 0ns) {
    poll(slot, flight);
    return Progress::Pending;
  }
  // A poll that failed or woke early tells nothing; one that timed out gets a last look.
  if (result < 0 && !ended(flight)) return lost(slot);
  auto state = fence_state(flight.fence.get());
  if (state && !*state && ended(flight)) state = fence_state(flight.fence.get());  // unreached: a race
  if (state && !*state) return lost(slot);                                         // unreached: a race
  retire(flight);
  if (!state && options_.giver != nullptr) {  // nothing writes there any more
    give_up(slot);
  } else if (!state) {
    return copy_error("copy " + describe(layout_, slot.chunk) + " on " + device_.path(), state.error());
  }
  if (direction_ == Direction::Dump && hardware_->staging == Staging::CpuCopy) copy_from_staging_bo(slot);
  return end_part(slot);
}

Result<Progress> SdmaCopy::end_part(Slot& slot) {
  release_pieces(slot);
  const Chunk& part = hardware_->flights[index_of(slot)].part;
  if (part.file_offset + part.length == slot.chunk.file_offset + slot.chunk.length) return Progress::Done;
  SLUICE_TRY(start(slot));
  return Progress::Pending;
}

Result<void> SdmaCopy::finish() {
  if (finished_bos_ == layout_.bo_count() && in_flight_ == 0) return {};
  return make_error(
      EIO, formatted("copy stage: only {} of {} BOs were copied", finished_bos_, layout_.bo_count()));
}

void SdmaCopy::copy_from_staging_bo(const Slot& slot) {
  const auto arena_offset = static_cast<std::size_t>(slot.buffer.data() - arena_.bytes().data());
  const std::byte* const from = hardware_->staging_bo.cpu().data() + arena_offset;
  Piece piece;
  for (PiecesOfPart at(layout_, slot.chunk, hardware_->flights[index_of(slot)].part); at.next(piece);) {
    if (piece.is_header()) continue;
    if (is_given_up(hardware_->live_of(piece.bo))) {
      clear(slot, piece);  // unreached: no test
      continue;
    }
    std::memcpy(slot.buffer.data() + piece.buffer_offset, from + piece.buffer_offset,
                static_cast<std::size_t>(piece.length));
  }
}

std::chrono::nanoseconds SdmaCopy::time_left(const Flight& flight) const {
  const std::chrono::nanoseconds taken(reactor_.now_ns() - flight.launched_ns);
  const auto all = is_stopped() ? std::min(options_.fence_timeout, kStoppedTimeout) : options_.fence_timeout;
  return std::max(all - taken, std::chrono::nanoseconds(0));
}

void SdmaCopy::poll(Slot& slot, const Flight& flight) {
  reactor_.poll_readable(slot.op(), flight.fence.get(), std::min(time_left(flight), kListenPeriod));
}

// Blocks until the job has ended, successfully or not; false if its time ran out first.
bool SdmaCopy::ended(const Flight& flight) const {
  for (auto left = time_left(flight);;) {
    const auto step = std::min(left, kListenPeriod);
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
    left = std::min(left - step, time_left(flight));
  }
}

// The job of `slot` may write for ever: everything it can reach stays.
Error SdmaCopy::lost(const Slot& slot) {
  lost_ = true;
  arena_.abandon();
  if (options_.giver != nullptr) options_.giver->note_lost();
  const std::string what = "copy " + describe(layout_, slot.chunk) + " on " + device_.path();
  if (is_stopped()) return make_error(ECANCELED, what + " was stopped before the GPU finished");
  return Error{
      ETIMEDOUT,
      formatted("{}: the GPU did not finish within {} and may still write to memory that stays mapped "
                "until this process ends; reset the GPU if the kernel's log says that its engine hangs "
                "[SL-C05]",
                what, in_milliseconds(options_.fence_timeout))};
}

}  // namespace sluice::drm
