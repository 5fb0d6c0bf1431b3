// SPDX-License-Identifier: MIT
// Which units of a dump are the same as in its parent, an older dump: found by their sums as these are made.
//
// Whether two BOs are the same is only a hint (ParentBo); each unit's sum decides. Units cut differently from
// the parent's count as changed. Files are written in parts of kZeroUnitBytes, so only whole parts are left
// out: those without any bytes from elsewhere. If extents can be shared, a part must also lie in one file of
// the parent, at the file system's block boundaries.
//
// Threads: a lane's workers call take() at once, for different chunks; call everything else before or after.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/checksum/checksum.h"
#include "pipeline/checksum/units.h"
#include "pipeline/layout.h"
#include "pipeline/slot.h"
#include "pipeline/store/extent_cloner.h"

namespace sluice {

// Files of the parent, with their sums. Immutable. It does not move, because the index refers to the
// layout.
struct ParentFiles {
  // REQUIRES: one table and one name per file of the layout; tables with the same cuts. `dir`: the
  // files' directory, valid while anything is cloned from them.
  ParentFiles(ImageLayout its_layout, std::vector<SumTable> its_tables, std::vector<std::string> its_names,
              int dir = -1)
      : dir_fd(dir),
        layout(std::move(its_layout)),
        tables(std::move(its_tables)),
        names(std::move(its_names)),
        units(layout, tables.front().block_bytes) {}
  ParentFiles(const ParentFiles&) = delete;
  ParentFiles& operator=(const ParentFiles&) = delete;

  const int dir_fd;
  const ImageLayout layout;
  const std::vector<SumTable> tables;
  const std::vector<std::string> names;
  const UnitIndex units;
};

// A BO of the parent's. `files` outlives this.
struct ParentBo {
  const ParentFiles* files = nullptr;  // null: the parent has no such BO
  std::uint32_t bo = 0;                // of its layout
};

// Consecutive units of a file that are in the same order in a file of the parent.
struct ParentRun {
  std::uint64_t first_unit = 0;
  std::uint64_t units = 0;
  std::uint32_t file = 0;    // of the parent: an index into ParentRuns::files
  std::uint64_t offset = 0;  // of the first unit's first byte, in that file

  bool operator==(const ParentRun&) const = default;
};

// All runs of a file, in the order of its units.
struct ParentRuns {
  std::vector<std::string> files;  // names of the parent's
  std::vector<ParentRun> runs;

  bool empty() const { return runs.empty(); }
  bool operator==(const ParentRuns&) const = default;
};

class ParentMatch {
 public:
  // `layout` is borrowed, and `tables` are the sums of the dump under way. `bos`: by its BOs.
  // Tables with other cuts, or of another method, match nothing. `clone_block_bytes`: a power of two, at most
  // kZeroUnitBytes; offsets must be multiples of it where extents are shared; 0: they cannot be.
  ParentMatch(const ImageLayout& layout, std::span<const SumTable> tables, std::vector<ParentBo> bos,
              std::uint64_t clone_block_bytes = 0);

  // Fills slot.parent_units, once all sums of its chunk are in its file's `table`.
  void take(Slot& slot, const SumTable& table);

  // For a file, after its last chunk: what the parent has of it, ...
  ParentRuns runs(std::uint32_t file) const;
  // ... and, if extents can be shared, what is cloned from there. Any thread.
  CloneRuns clones(std::uint32_t file) const;
  bool shares_extents() const { return clone_block_bytes_ != 0; }
  // For all chunks so far: bytes that are not written because the parent has them.
  std::uint64_t bytes() const { return bytes_; }

 private:
  // Where the parent has a BO's unit: the file, and by how much its offset there is higher.
  struct Source {
    const ParentFiles* files = nullptr;
    std::uint32_t file = 0;
    std::int64_t further = 0;

    bool operator==(const Source&) const = default;
  };
  // The parent's sum of a unit; null: the parent has nothing comparable.
  const Sum128* sum_of(const SumRange& range) const;
  // REQUIRES: sum_of() has something. `begin`: of the unit, in the file.
  Source source_of(const SumRange& range, std::uint64_t begin) const;
  void keep_cloneable(Slot& slot);

  const ImageLayout& layout_;
  UnitIndex units_;
  SumMethod method_;
  std::vector<ParentBo> bos_;
  // By file and unit. Bytes, not bits: workers write neighbours.
  std::vector<std::vector<std::uint8_t>> is_parents_;
  std::uint64_t clone_block_bytes_;
  std::vector<std::vector<std::uint8_t>> is_cloned_;  // the same by part, if extents are shared
  std::atomic<std::uint64_t> bytes_{0};
};

}  // namespace sluice
