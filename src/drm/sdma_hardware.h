// SPDX-License-Identifier: MIT
// What the copy stage (sdma_copy.h) has on the GPU: staging memory, IBs, contexts, BOs, jobs. For its own
// sources.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "drm/device.h"
#include "drm/sdma_copy.h"
#include "pipeline/arena.h"

namespace sluice::drm {

inline constexpr std::uint32_t kNone = UINT32_MAX;

// A BO between its first piece and its last. `imported_` guards it; while it has users, the lane's thread
// reads it without.
struct SdmaCopy::LiveBo {
  void let_go() {
    mapping = VaMapping();
    bo = Bo();
  }

  Bo bo;
  VaMapping mapping;  // after bo: unmapped before it is freed
  std::uint64_t chunks_left = 0;
  std::uint32_t users = 0;  // pieces that are being copied
  bool given_up = false;    // only zeros are copied from here on
  std::uint32_t next_free = kNone;
};

// Runs its jobs in order: a job that hangs delays all after it.
struct SdmaCopy::Entity {
  Context* context;
  std::uint32_t ring;
  std::uint32_t jobs = 0;  // in flight
};

// A slot's work in flight on the GPU.
struct SdmaCopy::Flight {
  bool active = false;  // a job was queued and has not been seen to end
  bool waits = false;   // the chunk is ahead of its rate, or at a BO whose turn has not come
  Chunk part;           // of the slot's chunk: what was begun last; before it, all is copied
  Entity* entity = nullptr;
  Job job;
  UniqueFd fence;                 // none before it was requested, or if it is unavailable
  std::uint64_t launched_ns = 0;  // on the reactor's clock
};

// Members in order of acquisition; released in reverse order.
struct SdmaCopy::Hardware {
  explicit Hardware(const Device& device_of_all) : device(device_of_all), list(0) {}
  Result<void> stage(const StagingArena& arena);
  Entity& next_entity();
  LiveBo& live_of(std::uint32_t bo) { return live[sources[bo].live]; }

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
  std::size_t turn = 0;  // the entity to try first next time
  std::vector<Source> sources;
  std::vector<LiveBo> live;  // sized once
  std::uint32_t free_live = kNone;
  std::uint32_t live_count = 0;
  BoList list;
  std::vector<Flight> flights;  // by slot index

  // Kept hardware is linked here, so that it is no accidental leak.
  Hardware* next_kept = nullptr;
};

}  // namespace sluice::drm
