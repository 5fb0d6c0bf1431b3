// SPDX-License-Identifier: MIT
// Where a lane of a restore reads its contents, if its own files lack some of them, or other lanes have the
// same. Functions and values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/chain/chain.h"
#include "images/pages.h"
#include "images/sums.h"
#include "pipeline/extents/extent_reader.h"
#include "pipeline/layout.h"

namespace sluice::plugin {

// The checkpoints that the files of a restore depend on. Set before the first job begins.
struct RestoreParents {
  const Chain* chain = nullptr;  // borrowed; null: the checkpoint is complete by itself
  std::vector<int> directories;  // in this process, as Chain::directories()
};

// The pages files of a restore that several of its lanes read. Set before the first job begins.
using ReadBySeveral = std::set<std::string>;

// Whether a file of the set is unreadable without its sidecar.
bool needs_sidecar(int image_dir, int id, const PagesSet& set, const ImageLayout& layout);

// Whether the lane reads a file that others read, or could read one.
bool has_shared_files(const Sidecar& sidecar, const ReadBySeveral& shared);

// By file of the layout: where its bytes are. `image_dir`, and what `parents` has, are borrowed while the
// maps are used. Errors: those of Chain::resolve(); ESTALE or EBADMSG if the chain is not the sidecar's.
Result<std::vector<ExtentMap>> extents_of(int image_dir, const RestoreParents& parents,
                                          const ReadBySeveral& shared, const ImageLayout& layout,
                                          const Sidecar& sidecar);

// Reads bytes of a file at `offset`. False: they cannot be had.
bool read_bytes(int image_dir, const std::string& name, std::uint64_t offset, std::span<std::byte> into);

}  // namespace sluice::plugin
