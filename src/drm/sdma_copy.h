// SPDX-License-Identifier: MIT
// The copy stage: moves a chunk between its BOs and its slot's staging buffer with the GPU's DMA engines
// (SDMA).
//
//   dump:    BO pieces -> slot buffer; the header piece (payload length) is written by the CPU
//   restore: slot buffer -> BO pieces; known zeros (slot.zero_units) become constant fills, the header is
//   skipped
//
// One submission per chunk, however many BOs it holds: one list of its BOs, one IB, one fence, which reaches
// the reactor as a pollable sync_file. Several chunks run at the same time, spread over (context, ring)
// entities; no order among them is assumed. What lives as long as the lane: contexts, IB memory and the GPU's
// map of the staging arena. What lives from a BO's first piece to its last: its import and its map. So
// neither a huge BO nor 100 000 small ones need more than the slots do; live BOs are at most (BOs per chunk)
// x slots + 1.
//
// Staging. The arena is registered with the GPU as userptr memory. Where that is refused (EBUSY and EFAULT
// after some attempts, anything else at once) a GTT BO of the same size takes its place and the CPU copies
// between it and the slot buffers: slower, never wrong; staging() and staging_note() tell.
//
// Failure. A job whose fence never comes (reactor: ETIME) may still write: then the arena is abandoned and
// every BO, map, IB and context of the stage is kept until the process ends. Device, layout, arena, slots and
// reactor are borrowed and must outlive the stage. Thread-bound to the lane.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "drm/device.h"
#include "pipeline/arena.h"
#include "pipeline/layout.h"
#include "pipeline/reactor.h"
#include "pipeline/stage.h"

namespace sluice::drm {

// Where BO i of the layout comes from.
struct BoSource {
  UniqueFd dmabuf;          // closed as soon as the BO is imported
  std::uint64_t bytes = 0;  // must be the layout's
};

struct SdmaCopyOptions {
  // Entities are contexts x rings of a context; the kernel spreads them over the engines.
  std::uint32_t contexts = 2;
  std::uint32_t rings_per_context = 2;  // as many as the device has, if it has fewer
  // Longer than the kernel's own limit for a DMA job (10 s), after which it resets the engine and signals the
  // fence.
  std::chrono::nanoseconds fence_timeout = std::chrono::seconds(60);
  // Once it is set nobody needs the bytes any more, and a job that has not ended a tenth of a second after it
  // was launched is given up as if its time were over. Borrowed; null: never.
  const std::atomic<bool>* stopped = nullptr;
};

enum class Staging : std::uint8_t {
  Userptr,  // the GPU reaches the slot buffers
  CpuCopy,  // the GPU reaches a GTT BO; the CPU copies between that and the slot buffers
};

struct SdmaCopyStats {
  std::uint64_t copied_bytes = 0;  // by linear copies
  std::uint64_t filled_bytes = 0;  // by constant fills
  std::uint64_t submissions = 0;
  std::uint64_t packets = 0;
  std::uint64_t imported_bos = 0;
  std::uint32_t live_bos_peak = 0;
  std::uint64_t pinned_bytes = 0;  // staging in GTT or userptr, and IBs
};

class SdmaCopy final : public Stage {
 public:
  // Registers the arena, allocates IBs and contexts. `sources` are one per BO of `layout`. REQUIRES: every
  // slot.buffer lies in `arena`; only slots of `slots` are submitted. Errors: EINVAL for sources that do not
  // fit the layout, E2BIG for chunks that need more IBs than a job may have, and the device's.
  static Result<std::unique_ptr<SdmaCopy>> make(const Device& device, Direction direction,
                                                const ImageLayout& layout, std::vector<BoSource> sources,
                                                StagingArena& arena, std::span<Slot> slots, Reactor& reactor,
                                                const SdmaCopyOptions& options = {});

  // Waits, bounded by the fence timeout, for what a broken lane left in flight.
  ~SdmaCopy() override;

  const char* name() const override { return "copy"; }
  Result<Submit> submit(Slot& slot) override;
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override;
  // Every BO was copied whole and released. Errors: EIO if not.
  Result<void> finish() override;

  Staging staging() const;
  // Why the CPU has to copy, in one line; empty for Userptr.
  const std::string& staging_note() const;
  const SdmaCopyStats& stats() const { return stats_; }

 private:
  struct LiveBo;
  struct Entity;
  struct Flight;
  struct Hardware;
  SdmaCopy(const Device& device, Direction direction, const ImageLayout& layout, StagingArena& arena,
           std::span<Slot> slots, Reactor& reactor, const SdmaCopyOptions& options);

  Result<void> set_up(std::vector<BoSource> sources);
  Result<void> set_up_staging();
  std::uint64_t ib_dwords_of_worst_chunk(std::uint64_t& pieces_max) const;

  Result<LiveBo*> acquire(std::uint32_t bo);
  void release_pieces(const Chunk& chunk);
  Result<void> encode(Slot& slot, IbBuilder& ib);
  void encode_restore(Slot& slot, const Piece& piece, std::uint64_t target, IbBuilder& ib);
  Entity& next_entity();
  Result<void> launch(Slot& slot, Entity& entity, IbBuilder& ib, std::span<const IbSegment> segments);
  void retire(Flight& flight);
  void copy_from_staging_bo(const Slot& slot);
  std::size_t index_of(const Slot& slot) const { return static_cast<std::size_t>(&slot - slots_.data()); }
  bool is_stopped() const { return options_.stopped != nullptr && *options_.stopped; }
  std::chrono::nanoseconds time_left(const Flight& flight) const;
  void poll(Slot& slot, const Flight& flight);
  bool ended(const Flight& flight) const;
  Error lost(const Slot& slot);
  std::string describe(const Chunk& chunk) const;
  std::string describe_bo(std::uint32_t bo) const;

  const Device device_;
  const Direction direction_;
  const ImageLayout& layout_;
  StagingArena& arena_;
  const std::span<Slot> slots_;
  Reactor& reactor_;
  const SdmaCopyOptions options_;

  std::unique_ptr<Hardware> hardware_;  // all that must stay if a fence never comes
  std::uint32_t in_flight_ = 0;         // submissions
  std::size_t turn_ = 0;                // index of the entity that is first asked next
  std::uint64_t finished_bos_ = 0;
  bool lost_ = false;
  SdmaCopyStats stats_;
};

}  // namespace sluice::drm
