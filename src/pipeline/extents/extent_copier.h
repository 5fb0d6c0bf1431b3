// SPDX-License-Identifier: MIT
// Copies what could be shared but was refused: bytes that are in no memory any more, only in another file.
//
// A clone has what the disk has. A copy has passed through memory, so it is compared with its sums first:
// damage of the other file ends the dump, while the job is alive.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "pipeline/checksum/checksum.h"
#include "pipeline/extents/clone_runs.h"
#include "pipeline/layout.h"

namespace sluice {

// The sums of the new files, by units. Borrowed; complete for a file when it is copied.
struct RunSums {
  const ImageLayout* layout = nullptr;
  std::span<const SumTable> tables;
};

// Copies all runs into an open file, called `name`, `file` of the sums' layout. REQUIRES: all units that a
// run has any byte of are in its source, in the same order. Gives up with ECANCELED once `stopped` (may be
// null) is set. Errors: as clone_runs(); those of reading and writing; EBADMSG, named, for a unit that
// differs from its sum.
Result<void> copy_runs(int fd, const std::string& name, std::uint32_t file, const CloneRuns& runs,
                       const RunSums& sums, const std::atomic<bool>* stopped = nullptr);

}  // namespace sluice
