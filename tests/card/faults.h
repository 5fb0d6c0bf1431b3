// SPDX-License-Identifier: MIT
// What goes wrong on demand, and what is counted: the control socket writes the one and reads the other, the
// engines the other way round. One thread.
#pragma once

#include <cstdint>
#include <optional>

namespace sluice::card {

struct Faults {
  // Fences of the kernel's own rings (SDMA FENCE, RELEASE_MEM of compute rings; never KIQ's and HIQ's).
  // kHold: the ring waits at its next fence until it is kPass again. kHang: the ring that comes to a fence
  // first stops there until the card is reset, as an engine that hangs; the mode is kPass then.
  enum class Fence : std::uint8_t { kPass, kHold, kHang };
  Fence fence = Fence::kPass;

  std::uint64_t sdma_bytes_per_s = 0;  // of what processes do, by each ring of an SDMA engine: the driver's
                                       // own jobs are as fast as they go, as all is with 0
  bool hold_copies = false;  // SDMA engines wait in IBs of processes, until this is false again: the driver's
                             // own jobs, page tables among them, go on
  bool sdma_fault = false;   // the next copy or fill of an SDMA kernel ring ends in a VM fault, and this is
                             // false again
  bool refuse_preemption = false;  // UNMAP_QUEUES leaves queues of processes where they are, and QUERY_STATUS
                                   // on the HIQ is not answered, until this is false again
  // So many more times a compute queue of a process leaves waves when it is unmapped: words in its MQD that
  // say so, and nothing else. The queue goes on as if it had none.
  std::uint64_t stops_with_waves = 0;
  // So many more instructions of kernels run, those of all queues together; then all stand until this says
  // otherwise. Nothing: no limit. Waves that stand can be saved: the driver's trap handler runs.
  std::optional<std::uint64_t> shader_instructions_left;
};

// Since power on.
struct Counters {
  std::uint64_t register_reads = 0;
  std::uint64_t register_writes = 0;
  std::uint64_t unknown_registers = 0;  // accesses of registers that the table does not have
  std::uint64_t doorbells = 0;
  std::uint64_t stray_doorbells = 0;  // that no queue listens to
  std::uint64_t interrupts = 0;       // entries of the interrupt ring
  std::uint64_t lost_interrupts = 0;  // the ring was off or full
  std::uint64_t vm_faults = 0;
  std::uint64_t pm4_packets = 0;   // of KIQ, HIQ, kernel compute rings and their IBs
  std::uint64_t user_packets = 0;  // of user queues, AQL, PM4 and SDMA
  std::uint64_t sdma_packets = 0;  // of the kernel's rings and their IBs
  std::uint64_t sdma_bytes = 0;    // copied and filled, by whichever queue
  std::uint64_t runlists = 0;
  std::uint64_t queues_mapped = 0;
  std::uint64_t queues_unmapped = 0;
  std::uint64_t queues_stopped = 0;       // by a fault of their own
  std::uint64_t shader_instructions = 0;  // of kernels, each wave's
  std::uint64_t shader_holds = 0;         // times that a kernel was to go on and stood on demand
  std::uint64_t waves_saved = 0;          // by the driver's trap handler
  std::uint64_t waves_resumed = 0;
};

}  // namespace sluice::card
