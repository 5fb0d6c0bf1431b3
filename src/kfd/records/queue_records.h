// SPDX-License-Identifier: MIT
// What the records of queues in the private data tell about the moment in which the queues stopped.
//
// A GPU that stops a queue saves the waves of its kernels. Their state goes to memory of the process. On GFX9
// the control stack, which says what to continue, is memory of the kernel, beside each MQD. Linux 7.2 leaves
// it out of the private data: its size there is 0. Then a restored queue continues nothing, and its kernels
// never end. On GFX10 and newer the control stack is memory of the process, and 0 is usual.
//
// Sources: kfd_process_queue_manager.c (criu_checkpoint_queue), kfd_mqd_manager_v9.c (init_mqd,
// get_wave_state, checkpoint_mqd), v9_structs.h; Linux 6.1 to 7.2.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kfd/records/private_data.h"
#include "kfd/topology.h"

namespace sluice::kfd {

// What a restore of some queues will not bring back; in queues.
struct QueueLosses {
  // Waves: state was saved, and the control stack for it is missing.
  std::size_t waves = 0;
  // The control stack is missing. A restored queue has no room for one, so its driver cannot save waves of
  // it (allocate_mqd and set_queue_properties_from_criu of Linux 7.2).
  std::size_t no_stack = 0;
  // Of a GPU with several dies (XCCs), each of which has an MQD. Linux 6.12 saves that of the first die only:
  // the others work with what their memory happened to hold. Linux 7.2 saves all, but compares their size
  // with that of one, so its RESTORE fails (kfd_mqd_manager_v9.c of both).
  std::size_t several_xccs = 0;
  // The control stack is missing, and its MQD says that it had words, but no state was saved. Firmware may
  // leave words on the stack of an idle queue.
  std::size_t stack_words = 0;
  // A kernel was running that may use the GPU's global wave sync (GWS), whose counters are not saved.
  std::size_t gws_values = 0;
  // A profiler has the GPU's counters (PROFILER, Linux 7.2). Its hold on them is not saved.
  std::size_t counters = 0;

  bool operator==(const QueueLosses&) const = default;
};

// `topology`: of the process, with its own gpu_ids. Queues of GPUs before GFX9 and after it count as nothing:
// their MQDs are others.
QueueLosses losses_of_queues(const PrivateData& data, const Topology& topology);

// Whether GFX9, which `gfx_target_version` is written for: 90010 is gfx90a.
constexpr bool is_gfx9(std::uint32_t gfx_target_version) {
  return gfx_target_version / 10000 == 9;
}

}  // namespace sluice::kfd
