// SPDX-License-Identifier: MIT
// Makes a checkpoint with a parent complete by itself. Contents that lie in older dumps are cloned where
// extents can be shared, else copied. Every unit is read and compared with its sum first.
//
// It stays the same dump: its id, its sums and the places of its units do not change. So dumps built on it
// stay valid, and its parent may be deleted. New files of a set are written beside the old ones, durably. A
// rename then installs the set's new sidecar, and files that it no longer names are removed. Once all sets
// are flat, the metadata get the names of a complete checkpoint (partial_name() in images/files/files.h). A
// kill or a power cut at any moment leaves each set as it was, or flat. The next run goes on: flat sets are
// done, and complete new files are only compared.
//
// Runs in a lane's thread (lane_thread.h), from begin to end.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "images/checkpoint.h"
#include "images/files/image_source.h"
#include "pipeline/extents/extent_cloner.h"

namespace sluice {

struct FlattenOptions {
  std::uint64_t chunk_bytes = 0;  // a power of two
  std::uint64_t staging_bytes = 0;
  CloneCall clone = clone_range;
  // Bytes of files. May be null.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = nullptr;
};

// What this run has done.
struct FlattenTotals {
  std::uint64_t files = 0;  // made, or found complete
  std::uint64_t bytes = 0;  // of these files
  std::uint64_t cloned_bytes = 0;
  std::uint64_t written_bytes = 0;  // without holes
  bool renamed = false;             // metadata had the names of a checkpoint that needs its parent
};

// `source`: a directory, borrowed; `checkpoint`: what read_checkpoint() gave for it. Errors: those of the
// images and of the chain; EBADMSG, named, for a unit that differs from its sum; EACCES for a directory that
// others can use, too; EBUSY while another writer is at work there (directory_lock.h); those of writing.
Result<FlattenTotals> flatten(const ImageSource& source, const Checkpoint& checkpoint,
                              const FlattenOptions& options);

}  // namespace sluice
