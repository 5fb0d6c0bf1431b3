// SPDX-License-Identifier: MIT
// How it is set up.
#include "drm/sdma_hardware.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

#include "base/format.h"
#include "base/units.h"
#include "pipeline/chunk_walk.h"

namespace sluice::drm {
namespace {

// userptr registration fails briefly while the kernel moves the pages (compaction, huge page collapse).
constexpr int kUserptrAttempts = 6;

}  // namespace

// The memory that the GPU copies to and from: the slot buffers or a substitute.
Result<void> SdmaCopy::Hardware::stage(const StagingArena& arena) {
  for (int attempt = 1;; ++attempt) {
    auto bo = Bo::from_user_memory(device, arena.bytes());
    if (bo) {
      staging_bo = std::move(bo).value();
      auto map = VaMapping::map(staging_bo, GpuAccess::ReadWrite);
      if (map) {
        staging_map = std::move(map).value();
        return {};
      }
      return std::move(map).error();
    }
    const int err = bo.error().err;
    const bool passing = err == EBUSY || err == EFAULT;
    if (!passing || attempt == kUserptrAttempts) {
      note = formatted(
          "the GPU cannot use the staging memory directly, so the CPU copies, more slowly: {} [SL-C04]",
          bo.error().what);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1 << (attempt - 1)));
  }
  staging = Staging::CpuCopy;
  SLUICE_TRY_ASSIGN(staging_bo, Bo::allocate_gtt(device, arena.bytes().size()));
  SLUICE_TRY_ASSIGN(staging_map, VaMapping::map(staging_bo, GpuAccess::ReadWrite));
  return {};
}

// The one with the fewest jobs, so that a hanging one gets few; equals take turns.
SdmaCopy::Entity& SdmaCopy::Hardware::next_entity() {
  std::size_t next = turn;
  for (std::size_t i = 0; i < entities.size(); ++i) {
    const std::size_t other = (turn + i) % entities.size();
    if (entities[other].jobs < entities[next].jobs) next = other;
  }
  return entities[next];
}

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
                                                 const ImageLayout& layout, std::vector<UniqueFd> dmabufs,
                                                 StagingArena& arena, std::span<Slot> slots, Reactor& reactor,
                                                 const SdmaCopyOptions& options) {
  auto stage =
      std::unique_ptr<SdmaCopy>(new SdmaCopy(device, direction, layout, arena, slots, reactor, options));
  SLUICE_TRY(stage->set_up(std::move(dmabufs)));
  return stage;
}

Result<void> SdmaCopy::set_up(std::vector<UniqueFd> dmabufs) {
  Hardware& hw = *hardware_;
  if (dmabufs.size() != layout_.bo_count()) {
    return make_error(EINVAL,
                      formatted("copy stage: {} dma-bufs for {} BOs", dmabufs.size(), layout_.bo_count()));
  }
  hw.sources.resize(dmabufs.size());
  for (std::uint32_t bo = 0; bo < dmabufs.size(); ++bo) {
    if (layout_.bo_bytes(bo) == 0) {
      hw.sources[bo].done = true;
      ++finished_bos_;
    } else {
      hw.sources[bo].dmabuf = std::move(dmabufs[bo]);
    }
  }

  if (options_.giver != nullptr) options_.giver->set_imported(this);
  if (options_.giver != nullptr || options_.bytes_per_second != 0) {
    never_readable_.reset(::eventfd(0, EFD_CLOEXEC));
    if (!never_readable_) return make_error(errno, "copy stage: eventfd");
  }
  SLUICE_TRY(hw.stage(arena_));

  std::uint64_t pieces_max = 0;
  const std::uint64_t dwords = ib_dwords_of_worst_chunk(pieces_max);
  // unreached: too large
  if (dwords > kIbSegmentsMax * std::uint64_t{kIbDwordsMax} * 9 / 10) {
    return Error{E2BIG,
                 formatted("a chunk of {} bytes needs more copy packets than one GPU job may hold; lower "
                           "SLUICE_CHUNK_SIZE [SL-C03]",
                           layout_.chunk_bytes())};
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
  // Ring by ring, so that neighbours in the round-robin have different contexts.
  for (const std::uint32_t ring : rings) {
    for (Context& context : hw.contexts) hw.entities.push_back({&context, ring});
  }

  // Between chunks in flight only BOs at the cursors are live; see sdma_copy.h.
  const std::uint64_t live =
      std::min<std::uint64_t>(layout_.bo_count(), pieces_max * slots_.size() + kBosOfCursor * kMostCursors);
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

}  // namespace sluice::drm
