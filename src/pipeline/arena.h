// SPDX-License-Identifier: MIT
// The staging arena of one lane: anonymous memory divided into slot buffers of equal size.
//
// A CPU map of a GTT BO is VM_PFNMAP, so O_DIRECT and registered buffers get EFAULT on it. userptr refuses
// file-backed memory (MAP_HUGETLB included) with EPERM. Hence anonymous memory. It uses transparent huge
// pages if available, and the GPU's NUMA node if one is given. With MADV_DONTFORK, a fork of the host neither
// copies it nor sees it change. All pages are touched when it is made, so the pipeline has no page faults.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "pipeline/reactor/reactor.h"
#include "pipeline/slot.h"

namespace sluice {

// One can be copied while the other is written.
inline constexpr std::uint32_t kFewestSlots = 2;

// How many slots of `slot_bytes` a lane has if it may use `bytes` of staging memory.
constexpr std::uint32_t slots_in(std::uint64_t bytes, std::uint64_t slot_bytes) {
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(bytes / slot_bytes, kFewestSlots));
}

// Staging memory for each of `gpus` GPUs that work at the same time, unless the user sets it. Four of them
// carry half as much again with half of it each, because the processor's cache then holds all rings
// (docs/measurements/real-dma.md).
constexpr std::uint64_t standard_staging_bytes(std::size_t gpus) {
  return gpus > 2 ? 32 * kMiB : 64 * kMiB;
}

// Move-only owner of the mapping. May be handed between threads.
class StagingArena {
 public:
  // `slots` buffers of `slot_bytes` (a multiple of kBufferAlignment) each. `numa_node` -1: no preference; a
  // missing or unusable node is no error. Errors: ENOMEM, EINVAL.
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

  // Leaves the memory mapped for ever, because something (a fence that never came) may still write to it.
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

// For a lane, made after both. If operations of the reactor are in flight at the end, its ring broke: data
// may still arrive at any time, and the arena is abandoned.
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

// One slot per buffer of the arena, with the same numbers.
std::vector<Slot> slots_of(const StagingArena& arena);

}  // namespace sluice
