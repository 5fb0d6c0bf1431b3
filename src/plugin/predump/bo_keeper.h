// SPDX-License-Identifier: MIT
// The dma-bufs of one lane's BOs, while the job that owns the BOs runs and may free them.
//
// A freed BO keeps its memory for as long as its dma-buf, or the lane's handle of it, is open. Held too long,
// it makes the job run out of memory. So no more are held than the memory keeper gives room for, and what
// only we hold is let go. Linux 6.1 does not show the latter, because the KFD has no dma-buf of its own
// there. If there will be another share, a BO that is not held waits for it. Otherwise the lane gives it up.
//
// Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "drm/sdma_copy.h"
#include "images/pages.h"

namespace sluice::plugin {

// Bytes of memory, by where it is.
struct MemoryUse {
  std::uint64_t vram = 0;    // of one GPU
  std::uint64_t system = 0;  // for all GPUs

  bool has_room_for(const MemoryUse& more) const { return vram >= more.vram && system >= more.system; }
  MemoryUse& operator+=(const MemoryUse& more);
  // Not below 0.
  MemoryUse& operator-=(const MemoryUse& less);
  // Both have some of the same kind.
  bool meets(const MemoryUse& other) const;
};

class BoKeeper final : public drm::BoSource {
 public:
  // Of one GPU, whose VRAM `is_system_memory` (an APU). REQUIRES: the job is stopped; dma-bufs of its BOs
  // show whether the kernel tells freed BOs. `more_shares`: until end_shares().
  BoKeeper(PagesSet pages, std::vector<UniqueFd> dmabufs, std::uint32_t render_minor, bool is_system_memory,
           bool more_shares);

  std::uint32_t render_minor() const { return render_minor_; }
  const PagesOwner& owner() const { return pages_; }

  Turn take(std::uint32_t bo, UniqueFd& dmabuf) override;
  void note_imported(std::uint32_t bo) override;
  void note_given_up(std::uint32_t bo) override;
  void note_done(std::uint32_t bo) override;
  void set_imported(drm::ImportedBos* bos) override;
  // Lets go of everything. The lane's counts are 0 from then on, because its files have no BO.
  void note_lost() override;
  bool is_lost() const override;
  std::uint64_t skipped_bytes() const override;

  // The next share: dma-bufs of the BOs that `pages` has. The job is stopped. A BO that it has no more, was
  // freed.
  void offer(const PagesSet& pages, std::vector<UniqueFd> dmabufs);
  // Of those offered and not begun, in order, keeps what fits `room`, takes it off there, and closes the
  // rest.
  void choose(MemoryUse& room);
  // There will be no other share.
  void end_shares();

  // What the lane waits for, if it does.
  std::optional<MemoryUse> wanted() const;
  // Of what is not held, what never fits.
  void give_up_larger(const MemoryUse& room);

  // Of what is held, and of what is being copied, a part of it.
  MemoryUse held() const;
  MemoryUse being_copied() const;
  // A BO that is held.
  struct HeldBo {
    BoKeeper* keeper = nullptr;
    std::uint32_t bo = 0;
    MemoryUse use;
  };
  void list_held(std::vector<HeldBo>& list);
  void give_back(std::uint32_t bo);
  // Lets go of those that the job has freed, among the next ones in turn. Four calls look at all.
  void drop_freed();  // one thread at a time

  struct Counts {
    std::uint64_t freed = 0;    // by the job, before they were copied
    std::uint64_t skipped = 0;  // for lack of memory, or because the copy failed
    std::uint64_t skipped_bytes = 0;
  };
  Counts counts() const;

 private:
  enum class State : std::uint8_t {
    NotHeld,
    Wanted,  // the same, and a chunk waits for it
    Held,    // not begun
    Given,   // to the lane
    Done,    // copied, freed or skipped
  };
  struct Bo {
    std::shared_ptr<const UniqueFd> dmabuf;  // null: none; also held while it is looked at
    State state = State::NotHeld;
    std::uint64_t references = 0;  // of its dma-buf, at least, while its owner has it; 0: unknown
  };
  MemoryUse use_of(std::uint32_t bo) const;
  bool is_freed(const Bo& bo) const;
  void let_go(std::uint32_t bo) SLUICE_REQUIRES(mutex_);
  void skip(std::uint32_t bo) SLUICE_REQUIRES(mutex_);
  void note_freed(std::uint32_t bo) SLUICE_REQUIRES(mutex_);
  MemoryUse sum_of(State a, State b) const SLUICE_REQUIRES(mutex_);

  const PagesSet pages_;
  const std::uint32_t render_minor_;
  const bool is_system_memory_;
  bool kernel_tells_ = true;
  mutable Mutex mutex_;
  bool more_shares_ SLUICE_GUARDED_BY(mutex_);
  std::vector<Bo> bos_ SLUICE_GUARDED_BY(mutex_);
  drm::ImportedBos* imported_ SLUICE_GUARDED_BY(mutex_) = nullptr;
  std::size_t next_ = 0;  // of drop_freed()
  Counts counts_ SLUICE_GUARDED_BY(mutex_);
  bool lost_ SLUICE_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::plugin
