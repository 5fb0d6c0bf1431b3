// SPDX-License-Identifier: MIT
// The parts of a lane put together over memory BOs and a real file: what most engine tests run. Thread-bound.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pipeline/arena.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/pipeline.h"
#include "pipeline/store/file_store.h"
#include "pipeline/thread_reactor.h"
#include "pipeline/uring_reactor.h"
#include "support/memory_copy.h"

namespace sluice::test {

inline constexpr const char* kPagesName = "amdgpu-pages-1-5759.img";

enum class ReactorKind { Uring, Threads };
const char* name_of(ReactorKind kind);

// Why `kind` cannot be had on this machine, in words; empty when it can.
std::string unavailable(ReactorKind kind);

// REQUIRES: unavailable(kind).empty(). Registers `arena` with a ring.
std::unique_ptr<Reactor> make_reactor_of(ReactorKind kind, unsigned entries, std::span<std::byte> arena = {});

// Slots over an arena whose buffers are chunk_bytes rounded up to the alignment.
struct LaneMemory {
  LaneMemory(std::uint64_t chunk_bytes, std::uint32_t depth);
  unsigned entries() const { return static_cast<unsigned>(slots.size() * kOpsPerSlot); }

  StagingArena arena;
  std::vector<Slot> slots;
};

struct LaneRun {
  ImageLayout& layout;
  LaneMemory& memory;
  Reactor& reactor;
  SumTable* table = nullptr;
  FileOptions file;
  unsigned checksum_workers = 0;  // 0: inline

  std::span<SumTable> tables() const { return {table, table != nullptr ? 1U : 0U}; }
};

// Both leave nothing but `name` (and that only on success) in the directory.
Result<PipelineStats> dump_to(int dir_fd, const std::string& name, BoList& bos, const LaneRun& run);
Result<PipelineStats> restore_from(int dir_fd, const std::string& name, BoList& bos, const LaneRun& run);

}  // namespace sluice::test
