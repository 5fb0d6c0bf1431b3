// SPDX-License-Identifier: MIT
// The order in which a dump lists a process' BOs. RESTORE accepts any: a BO's handle is in its record.
//
// Contents lie in a pages file in this order, back to back. The kernel orders by handle, and a new BO gets
// the lowest free one. So a small BO that comes or goes between two dumps would move all BOs after it, and
// sums over shifted blocks cannot be compared. Therefore BOs of whole blocks come first: they move only by
// whole blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kfd/criu_ops.h"

namespace sluice::kfd {

// Indices into `bo_bytes`: BOs of whole blocks of `block_bytes` first, then the others, each group in its old
// order.
std::vector<std::size_t> bo_order(std::span<const std::uint64_t> bo_bytes, std::uint64_t block_bytes);

// Puts the BOs, their dma-bufs and their records into this order. `bo_record_bytes`: as
// PrivateData finds it; with 0 the records are unknown, and nothing is moved.
void put_in_order(Checkpoint& checkpoint, std::uint32_t bo_record_bytes, std::uint64_t block_bytes);

}  // namespace sluice::kfd
