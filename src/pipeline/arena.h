// SPDX-License-Identifier: MIT
// The staging arena of one lane: anonymous memory cut into slot buffers of equal size.
//
// Anonymous, because a CPU map of a GTT BO is VM_PFNMAP and both O_DIRECT and registered buffers get EFAULT
// on it, and because userptr refuses file-backed memory (MAP_HUGETLB included) with EPERM. Transparent huge
// pages where they exist; MADV_DONTFORK, so that a fork of the host neither copies it nor sees it change;
// bound to the GPU's NUMA node when one is given. Touched once when made: no page fault happens in the
// pipeline.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "pipeline/reactor.h"
#include "pipeline/slot.h"

namespace sluice {

// One can be copied while the other is written.
inline constexpr std::uint32_t kFewestSlots = 2;

// How many slots of `slot_bytes` a lane has that may use `bytes` of staging memory.
constexpr std::uint32_t slots_in(std::uint64_t bytes, std::uint64_t slot_bytes) {
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(bytes / slot_bytes, kFewestSlots));
}

// Move-only owner of the mapping. May be handed between threads.
class StagingArena {
 public:
  // `slots` buffers of `slot_bytes` (a multiple of kBufferAlignment) each. `numa_node` -1: no preference; a
  // node that does not exist or cannot be bound to is no error. Errors: ENOMEM, EINVAL.
  static Result<StagingArena> make(std::uint64_t slot_bytes, std::uint32_t slots, int numa_node);

  StagingArena(StagingArena&& other) noexcept;
  StagingArena& operator=(StagingArena&& other) noexcept;
  ~StagingArena();

  std::span<std::byte> bytes() const { return bytes_; }
  std::uint32_t slots() const { return static_cast<std::uint32_t>(bytes_.size() / slot_bytes_); }
  std::span<std::byte> buffer(std::uint32_t slot) const {
    return bytes_.subspan(static_cast<std::size_t>(slot * slot_bytes_),
                          static_cast<std::size_t>(slot_bytes_));
  }

  // Leaves the memory mapped for ever: something (a fence that never came) may still write into it.
  void abandon() { abandoned_ = true; }
  bool abandoned() const { return abandoned_; }

 private:
  StagingArena(std::span<std::byte> bytes, std::uint64_t slot_bytes)
      : bytes_(bytes), slot_bytes_(slot_bytes) {}
  void unmap();

  std::span<std::byte> bytes_;
  std::uint64_t slot_bytes_ = 1;
  bool abandoned_ = false;
};

// Of a lane, made after both. Where the reactor has something in flight at the end, its ring broke: what it
// was to read may come at any time, and the arena is abandoned.
class ArenaKeeper {
 public:
  ArenaKeeper(StagingArena& arena, const Reactor& reactor) : arena_(arena), reactor_(reactor) {}
  ~ArenaKeeper() {
    if (reactor_.in_flight() > 0) arena_.abandon();
  }
  ArenaKeeper(const ArenaKeeper&) = delete;
  ArenaKeeper& operator=(const ArenaKeeper&) = delete;

 private:
  StagingArena& arena_;
  const Reactor& reactor_;
};

// One slot for each of the arena's buffers, numbered as they are.
std::vector<Slot> slots_of(const StagingArena& arena);

}  // namespace sluice
