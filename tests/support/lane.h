// SPDX-License-Identifier: MIT
// Lanes over memory BOs and a real file, for most engine tests. Thread-bound.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pipeline/arena.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/lane.h"
#include "pipeline/lane_world.h"
#include "pipeline/pipeline.h"
#include "pipeline/reactor/thread_reactor.h"
#include "pipeline/reactor/uring_reactor.h"
#include "pipeline/store/file_runs.h"
#include "support/memory_copy.h"

namespace sluice::test {

inline constexpr const char* kPagesName = "amdgpu-pages-1-5759.img";

enum class ReactorKind { Uring, Threads };
const char* name_of(ReactorKind kind);

// Why `kind` is unavailable on this machine, in words; empty if it is available.
std::string unavailable(ReactorKind kind);

// REQUIRES: unavailable(kind).empty(). Registers `arena` with a ring.
std::unique_ptr<Reactor> make_reactor_of(ReactorKind kind, unsigned entries, std::span<std::byte> arena = {});

// Lanes with this kind of reactor, whose invariants are checked between any two steps.
class TestWorld final : public LaneWorld {
 public:
  // A test's wrapper around the reactor.
  using Wrap = std::function<std::unique_ptr<Reactor>(std::unique_ptr<Reactor>)>;
  explicit TestWorld(ReactorKind kind, Wrap wrap = nullptr) : kind_(kind), wrap_(std::move(wrap)) {}

  Result<std::unique_ptr<Reactor>> make_reactor(unsigned entries, std::span<std::byte> arena,
                                                std::string& note) override;
  void step(const Pipeline& pipeline) override { pipeline.check_invariants(); }

 private:
  ReactorKind kind_;
  Wrap wrap_;
};

// A lane of `depth` slots, or as many as slots_in() and the layout's chunks allow.
std::unique_ptr<Lane> make_lane(const ImageLayout& layout, std::uint32_t depth, LaneWorld& world,
                                std::uint32_t cursors = 1);

// For tests of one stage: slots over an arena whose buffers are chunk_bytes rounded up to the alignment.
struct LaneMemory {
  LaneMemory(std::uint64_t chunk_bytes, std::uint32_t depth);
  unsigned entries() const { return static_cast<unsigned>(slots.size() * kOpsPerSlot); }

  StagingArena arena;
  std::vector<Slot> slots;
};

struct LaneRun {
  Lane& lane;
  SumTable* table = nullptr;
  FileOptions file;
  unsigned checksum_workers = 0;  // 0: inline

  std::span<SumTable> tables() const { return {table, table != nullptr ? 1U : 0U}; }
};

// Both leave nothing but `name` (and that only on success) in the directory.
Result<PipelineStats> dump_to(int dir_fd, const std::string& name, BoList& bos, const LaneRun& run);
Result<PipelineStats> restore_from(int dir_fd, const std::string& name, BoList& bos, const LaneRun& run);

}  // namespace sluice::test
