// SPDX-License-Identifier: MIT
// The copy stage: moves a chunk between its BOs and its slot's staging buffer with the GPU's DMA engines
// (SDMA).
//
//   dump:    BO pieces -> slot buffer; the CPU writes the header piece (payload length)
//   restore: slot buffer -> BO pieces; known zeros (slot.zero_units) become constant fills; no header
//
// One submission per chunk, however many BOs it has: one list of its BOs, one IB, and one fence. The fence
// reaches the reactor as a pollable sync_file. Several chunks run at the same time, spread over (context,
// ring) entities, in no particular order. Contexts, IB memory and the GPU's map of the staging arena live as
// long as the lane. A BO's import and map live from its first piece to its last. So neither a huge BO nor
// 100000 small ones need more than the slots do. Live BOs are at most (BOs per chunk) x slots, and
// kBosOfCursor for each cursor of the lane's walk.
//
// Staging: the arena is registered with the GPU as userptr memory. If that is refused (EBUSY and EFAULT after
// some attempts, anything else at once), a GTT BO of the same size replaces it. Then the CPU copies between
// it and the slot buffers, which is slower but correct; staging() and staging_note() tell.
//
// With a running job (a pre-dump, BoSource) the lane goes on if a BO is given up, cannot be imported or its
// copy fails: zeros follow in the buffer. A chunk waits at a BO whose turn has not come; what lies before it
// is copied and released first. Copies keep to a rate.
//
// Failure: a job whose fence never comes (reactor: ETIME) may still write. Then the arena is abandoned, and
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

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "drm/device.h"
#include "pipeline/arena.h"
#include "pipeline/layout.h"
#include "pipeline/reactor/reactor.h"
#include "pipeline/stage.h"

namespace sluice::drm {

// The BOs that a stage has imported. Any thread.
class ImportedBos {
 public:
  virtual ~ImportedBos() = default;
  // Gives the BO up, so zeros follow. Its memory is let go when the jobs that copy it have ended; at once if
  // there are none.
  virtual void let_go(std::uint32_t bo) = 0;
};

// Gives a BO's dma-buf when its turn comes, instead of those of make(). Called by the lane's thread.
class BoSource {
 public:
  enum class Turn : std::uint8_t { Given, Later, GivenUp };

  virtual ~BoSource() = default;
  // Sets `dmabuf` if it is given. Later: the stage asks again.
  virtual Turn take(std::uint32_t bo, UniqueFd& dmabuf) = 0;
  // It was given, and the stage has a handle of it.
  virtual void note_imported(std::uint32_t bo) = 0;
  // It was given, but is given up after all.
  virtual void note_given_up(std::uint32_t bo) = 0;
  // The stage has no more use for it.
  virtual void note_done(std::uint32_t bo) = 0;
  // From the first take() to the stage's end, then null.
  virtual void set_imported(ImportedBos* bos) = 0;
  // A copy did not end in time and may still write. The stage has failed and takes no more chunks.
  virtual void note_lost() = 0;
  virtual bool is_lost() const = 0;
  // Of BOs that were given up, other than by the job itself.
  virtual std::uint64_t skipped_bytes() const = 0;
};

struct SdmaCopyOptions {
  // Entities are contexts x rings per context; the kernel spreads them over the engines.
  std::uint32_t contexts = 2;
  std::uint32_t rings_per_context = 2;  // as many as the device has, if it has fewer
  // Longer than the kernel's own limit for a DMA job (10 s), after which it resets the engine and signals the
  // fence.
  std::chrono::nanoseconds fence_timeout = std::chrono::seconds(60);
  // Once it is set, the bytes are not needed any more. A job that has not ended a tenth of a second after its
  // launch is given up, as after the timeout. Borrowed; null: never.
  const std::atomic<bool>* stopped = nullptr;
  BoSource* giver = nullptr;           // dump; borrowed, null: the BOs' dma-bufs were passed to make()
  std::uint64_t bytes_per_second = 0;  // at most; 0: unlimited
};

enum class Staging : std::uint8_t {
  Userptr,  // the GPU reaches the slot buffers
  CpuCopy,  // the GPU reaches a GTT BO; the CPU copies between it and the slot buffers
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

class SdmaCopy final : public Stage, private ImportedBos {
 public:
  // Registers the arena, allocates IBs and contexts. `dmabufs`: one per BO of `layout`, closed as soon as it
  // is imported. REQUIRES: every slot.buffer lies in `arena`; only slots of `slots` are submitted. Errors:
  // EINVAL if the numbers of dma-bufs and BOs differ, E2BIG for chunks that need more IBs than a job may
  // have, and the device's.
  static Result<std::unique_ptr<SdmaCopy>> make(const Device& device, Direction direction,
                                                const ImageLayout& layout, std::vector<UniqueFd> dmabufs,
                                                StagingArena& arena, std::span<Slot> slots, Reactor& reactor,
                                                const SdmaCopyOptions& options = {});

  // Waits, limited by the fence timeout, for jobs that a failed lane left in flight.
  ~SdmaCopy() override;

  const char* name() const override { return "copy"; }
  Result<Submit> submit(Slot& slot) override;
  Result<Progress> advance(Slot& slot, Op& op, std::int32_t result) override;
  // Checks that every BO was copied completely and released. Errors: EIO if not.
  Result<void> finish() override;
  void abandon() override { abandoned_ = true; }

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

  Result<void> set_up(std::vector<UniqueFd> dmabufs);
  std::uint64_t ib_dwords_of_worst_chunk(std::uint64_t& pieces_max) const;

  void let_go(std::uint32_t bo) override;
  Result<LiveBo*> acquire(std::uint32_t bo);
  Result<bool> reach(std::uint32_t bo, LiveBo& live);
  bool is_given_up(const LiveBo& live);
  void give_up(const Slot& slot);
  Result<void> start(Slot& slot);
  std::chrono::nanoseconds take_time(const Chunk& chunk);
  void wait(Slot& slot, std::chrono::nanoseconds time);
  Result<Progress> end_part(Slot& slot);
  void release_pieces(const Slot& slot);
  void release(std::uint32_t bo);
  Result<void> encode(Slot& slot, IbBuilder& ib);
  void encode_restore(Slot& slot, const Piece& piece, std::uint64_t target, IbBuilder& ib);
  Result<void> launch(Slot& slot, Entity& entity, IbBuilder& ib, std::span<const IbSegment> segments);
  void retire(Flight& flight);
  void copy_from_staging_bo(const Slot& slot);
  std::size_t index_of(const Slot& slot) const { return static_cast<std::size_t>(&slot - slots_.data()); }
  bool is_stopped() const { return options_.stopped != nullptr && *options_.stopped; }
  std::chrono::nanoseconds time_left(const Flight& flight) const;
  void poll(Slot& slot, const Flight& flight);
  bool ended(const Flight& flight) const;
  Error lost(const Slot& slot);

  const Device device_;
  const Direction direction_;
  const ImageLayout& layout_;
  StagingArena& arena_;
  const std::span<Slot> slots_;
  Reactor& reactor_;
  const SdmaCopyOptions options_;

  std::unique_ptr<Hardware> hardware_;  // everything that must stay if a fence never comes
  std::uint32_t in_flight_ = 0;         // submissions
  std::uint64_t finished_bos_ = 0;
  bool lost_ = false;
  bool abandoned_ = false;
  Mutex imported_;                   // of LiveBos, against let_go()
  UniqueFd never_readable_;          // polled while a chunk waits
  std::uint64_t next_start_ns_ = 0;  // start of the next chunk at this rate, on the reactor's clock
  SdmaCopyStats stats_;
};

}  // namespace sluice::drm
