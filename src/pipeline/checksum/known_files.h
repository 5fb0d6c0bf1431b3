// SPDX-License-Identifier: MIT
// Files whose sums are known, so that a dump need not write what they have: its parent's, or those of a lane
// of the same dump.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/checksum/checksum.h"
#include "pipeline/checksum/units.h"
#include "pipeline/layout.h"

namespace sluice {

// It does not move, because the index refers to the layout. Immutable, except that a lane of the same dump
// still fills its tables (LeaderLane).
struct KnownFiles {
  using Tables = std::vector<SumTable>;

  // REQUIRES: one table and one name per file of the layout; tables with the same cuts. `dir`: the files'
  // directory, valid while anything is cloned from them.
  KnownFiles(ImageLayout its_layout, std::shared_ptr<const Tables> its_tables,
             std::vector<std::string> its_names, int dir = -1)
      : dir_fd(dir),
        layout(std::move(its_layout)),
        owner(std::move(its_tables)),
        tables(*owner),
        names(std::move(its_names)),
        units(layout, tables.front().block_bytes) {}
  KnownFiles(ImageLayout its_layout, Tables its_tables, std::vector<std::string> its_names, int dir = -1)
      : KnownFiles(std::move(its_layout), std::make_shared<const Tables>(std::move(its_tables)),
                   std::move(its_names), dir) {}
  KnownFiles(const KnownFiles&) = delete;
  KnownFiles& operator=(const KnownFiles&) = delete;

  const int dir_fd;
  const ImageLayout layout;
  const std::shared_ptr<const Tables> owner;
  const Tables& tables;
  const std::vector<std::string> names;
  const UnitIndex units;
};

// A BO of them. `files` outlives this.
struct KnownBo {
  const KnownFiles* files = nullptr;  // null: there is no such BO
  std::uint32_t bo = 0;               // of its layout
};

}  // namespace sluice
