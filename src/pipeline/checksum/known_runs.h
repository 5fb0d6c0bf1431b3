// SPDX-License-Identifier: MIT
// Runs: units of a file that are in other files instead, those of the dump's parent or of the same dump. A
// sidecar records them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/checksum/units.h"
#include "pipeline/layout.h"

namespace sluice {

// Consecutive units of a file that are in the same order in another file.
struct KnownRun {
  std::uint64_t first_unit = 0;
  std::uint64_t units = 0;
  std::uint32_t file = 0;    // an index into KnownRuns::files
  std::uint64_t offset = 0;  // of the first unit's first byte, in that file

  bool operator==(const KnownRun&) const = default;
};

// All runs of a file, in the order of its units.
struct KnownRuns {
  std::vector<std::string> files;  // names of the other files
  std::vector<KnownRun> runs;

  bool empty() const { return runs.empty(); }
  // The next unit, of `bytes` bytes, is in that file at `offset`. `end`: where the last unit that was added
  // ends there; the caller keeps it. Ascending.
  void append(std::uint64_t unit, std::uint64_t bytes, const std::string& file, std::uint64_t offset,
              std::uint64_t& end);

  bool operator==(const KnownRuns&) const = default;
};

// Finds units in a file's runs. Immutable; any thread.
class RunIndex {
 public:
  RunIndex() = default;
  // `file` of the layout has these runs.
  RunIndex(const ImageLayout& layout, const UnitIndex& units, std::uint32_t file, KnownRuns runs);

  struct Place {
    const std::string* file = nullptr;  // lives as long as the index
    std::uint64_t offset = 0;           // bytes
  };
  // Where a unit is that begins at byte `begin` of the file; nothing: no run has it.
  std::optional<Place> find(std::uint64_t unit, std::uint64_t begin) const;

 private:
  KnownRuns runs_;
  std::vector<std::uint64_t> begins_;  // by run: where it begins in the file, bytes
};

}  // namespace sluice
