// SPDX-License-Identifier: MIT
// Which units of a dump other files have: those of its parent, an older dump, or of lanes of the same dump
// that come before (LeaderLane). Found by their sums as these are made.
//
// Whether two BOs are the same is only a hint; each unit's sum decides. Units that are cut differently count
// as other ones. The parent comes first. Then the leader that had the last match is asked; all of them are
// asked once a MiB of a BO, so that this costs next to nothing where nothing is equal.
//
// Files are written in parts of kZeroUnitBytes, so only whole parts are left out: those without any bytes
// from elsewhere. If extents can be shared, a part must also lie in one file, at the file system's block
// boundaries.
//
// Threads: a lane's workers call take() at once, for different chunks, and its loop asks waits_for()
// meanwhile; call everything else before or after.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/checksum/checksum.h"
#include "pipeline/checksum/known_files.h"
#include "pipeline/checksum/known_runs.h"
#include "pipeline/checksum/units.h"
#include "pipeline/extents/extent_cloner.h"
#include "pipeline/layout.h"
#include "pipeline/replica/leader_lane.h"
#include "pipeline/slot.h"

namespace sluice {

// The runs of a file: what the parent has, and what other files of the dump have.
struct FoundRuns {
  KnownRuns parents;
  KnownRuns replicas;
};

// How many leaders a lane has at most.
inline constexpr std::size_t kMostLeaders = 16;

class ContentMatch {
 public:
  // `layout` is borrowed, and `tables` are the sums of the dump under way. `bos`: by its BOs.
  // Tables with other cuts, or of another method, match nothing. `clone_block_bytes`: a power of two, at most
  // kZeroUnitBytes; offsets must be multiples of it where extents are shared; 0: they cannot be, and what
  // others have is left out. `leaders`: at most kMostLeaders, the nearest lane first.
  ContentMatch(const ImageLayout& layout, std::span<const SumTable> tables, std::vector<KnownBo> bos,
               std::uint64_t clone_block_bytes = 0, std::vector<Leader> leaders = {});

  // What a chunk must wait for, so that what a leader has of it is known; nothing: it may begin.
  struct Wait {
    LeaderLane* lane = nullptr;
    std::uint64_t chunk = 0;  // of that lane
  };
  std::optional<Wait> waits_for(const Chunk& chunk) const;

  // Fills slot.known_units, once all sums of its chunk are in its file's `table`.
  void take(Slot& slot, const SumTable& table);

  // For a file, after its last chunk: what others have of it. A run never leads to a run: what a leader has
  // elsewhere itself is named there. The names of leaders' files are those that these lanes gave. ...
  FoundRuns runs(std::uint32_t file) const;
  // ... and, if extents can be shared, what is cloned from others. Any thread. REQUIRES, for both:
  // wait_for_leaders() has succeeded.
  CloneRuns clones(std::uint32_t file) const;
  bool follows() const { return !leaders_.empty(); }
  bool shares_extents() const { return clone_block_bytes_ != 0; }
  // After the last chunk: waits until all leaders that have anything are complete. Errors: those of
  // LeaderLane::wait_for_end().
  Result<void> wait_for_leaders(const std::function<bool()>& gives_up) const;
  // For all chunks so far: bytes that are not written because the parent, or a leader, has them.
  std::uint64_t parent_bytes() const { return parent_bytes_; }
  std::uint64_t replica_bytes() const { return replica_bytes_; }

 private:
  // By unit: who has it. Leaders count from kFirstLeader.
  enum Owner : std::uint8_t { kNobody, kParent, kFirstLeader };
  // Where a unit of a BO is elsewhere: the file, and by how much its offset there is higher.
  struct Source {
    const KnownFiles* files = nullptr;
    std::uint32_t file = 0;
    std::int64_t further = 0;

    bool operator==(const Source&) const = default;
  };
  KnownBo known_bo(Owner owner, std::uint32_t bo) const;
  // The sum of the same unit of another BO; null: that has nothing comparable, or nobody knows yet.
  const Sum128* sum_of(const SumRange& range, Owner owner) const;
  Owner owner_of(const SumRange& range, const Sum128& sum);
  // Where a run has the unit; the name is borrowed from the owner. REQUIRES: it has the unit.
  struct RunPlace {
    const std::string* file = nullptr;
    std::uint64_t offset = 0;
    bool in_parent = false;
  };
  RunPlace run_place_of(const SumRange& range, Owner owner) const;
  // REQUIRES: the owner has the unit. `begin`: of the unit, in the file.
  Source source_of(const SumRange& range, std::uint64_t begin, Owner owner) const;
  static Owner leader(std::size_t number) { return static_cast<Owner>(kFirstLeader + number); }
  static bool is_hole(const Slot& slot, const SumRange& range);
  void keep_cloneable(Slot& slot);

  const ImageLayout& layout_;
  UnitIndex units_;
  SumMethod method_;
  std::vector<KnownBo> bos_;
  std::vector<Leader> leaders_;
  std::atomic<std::size_t> last_leader_;  // that had a match; leaders_.size(): none
  // By file and unit. Bytes, not bits: workers write neighbours.
  std::vector<std::vector<Owner>> owners_;
  std::uint64_t clone_block_bytes_;
  std::vector<std::vector<std::uint8_t>> is_cloned_;  // the same by part, if extents are shared
  std::atomic<std::uint64_t> parent_bytes_{0};
  std::atomic<std::uint64_t> replica_bytes_{0};
};

}  // namespace sluice
