// SPDX-License-Identifier: MIT
// Memory queue descriptors of a process: where the driver keeps what its queues are, and what CHECKPOINT
// saves of them. The KFD shows them in debugfs.
//
// Source: pqm_debugfs_mqds (kfd_process_queue_manager.c), struct v9_mqd (v9_structs.h). Any thread.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <vector>

namespace sluice::vm_test {

// Of a compute queue.
struct QueueTraits {
  std::array<std::uint32_t, 8> cu_masks = {};  // compute units that it may use, of each shader engine
  std::uint32_t pipe_priority = 0;             // 0 to 2
  std::uint32_t priority = 0;                  // of the caller; Linux 7.2 leaves it 0
  auto operator<=>(const QueueTraits&) const = default;
};

// Of all compute queues of a process, sorted; none where the KFD knows no such process.
std::vector<QueueTraits> queue_traits(pid_t pid);

}  // namespace sluice::vm_test
