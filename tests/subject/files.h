// SPDX-License-Identifier: MIT
// The subject's open files in all their shapes, what hangs on them (a child, maps), and libhsakmt's shared
// memory. Functions over the arena, called from the main thread.
#pragma once

#include <sys/types.h>

#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "subject/arena.h"
#include "subject/device.h"
#include "subject/options.h"

namespace sluice::subject {

// A copy of another process' descriptor.
Result<UniqueFd> take_descriptor(pid_t pid, int fd);

// /dev/kfd and the render nodes as the options say; fills the GPU records; every GPU's VM is acquired.
Result<void> open_files(Arena& arena, const Options& options, const std::vector<TopologyGpu>& topology);
// Render nodes only.
Result<void> open_render_nodes(Arena& arena, const Options& options,
                               const std::vector<TopologyGpu>& topology);

// A child that has nothing open, and that many threads besides its first: before the caller has threads. It
// inherits the maps that there are.
Result<void> add_threaded_child(Arena& arena, std::uint32_t threads);

// What the options want to be there once all BOs exist: dma-buf and its map, shared memory, the child; then
// files that shall be closed are closed.
Result<void> finish_files(Arena& arena, const Options& options);

Result<void> check_files(const Arena& arena);
Result<void> end_children(Arena& arena);

}  // namespace sluice::subject
