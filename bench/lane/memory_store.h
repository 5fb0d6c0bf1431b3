// SPDX-License-Identifier: MIT
// Stores of a machine whose disk takes no time: a dump's chunks are discarded, and those of a restore are
// there already. All chunks of such an image are the same, except for the header.
#pragma once

#include "lane/lane_run.h"
#include "pipeline/checksum/checksum.h"

namespace sluice::bench {

// REQUIRES: chunks of kChunkBytes. `copies`, of a restore: each chunk is copied into its slot.
MakeStore memory_store(Direction direction, bool copies = false);

// The sums of the image that it restores.
SumTable sums_of_memory(const ImageLayout& layout, const SumMethod& method = {});

}  // namespace sluice::bench
