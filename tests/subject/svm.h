// SPDX-License-Identifier: MIT
// SVM ranges of the subject: attributes over memory of the arena, as records. Only the subject's main thread.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "subject/arena.h"

namespace sluice::subject {

// Two ranges with different attributes on each GPU's memory, filled with data.
Result<void> add_svm_ranges(Arena& arena);
// Attributes and data are what they were.
Result<void> check_svm(const Arena& arena);
// The first range of each GPU goes into its VRAM (PREFETCH_LOC), where it stays until the CPU touches it.
Result<void> prefetch_svm(Arena& arena);
// Gives every range another granularity.
Result<void> work_svm(Arena& arena);

// Lets a GPU access [address, address + bytes) of this process' memory: whole pages.
Result<void> svm_give_access(int kfd_fd, std::uint64_t address, std::uint64_t bytes, std::uint32_t gpu_id);

}  // namespace sluice::subject
