// SPDX-License-Identifier: MIT
// The registers of one VM hub: where its page tables are, TLB invalidation and its semaphores, and the last
// fault.
//
// There is no TLB, so an invalidation is done when it is asked for. A fault is kept in STATUS and ADDR until
// the driver clears them by FAULT_CNTL's bit 0; later ones only set MORE_FAULTS meanwhile. Facts: gmc_v9_0.c
// (gmc_v9_0_process_interrupt), kfd_int_process_v9.c, gc_9_0_sh_mask.h. WALKER_ERROR's numbers are ours: no
// driver looks at them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "engine.h"
#include "memory/memory.h"
#include "models/model.h"
#include "registers/names.h"
#include "registers/registers.h"

namespace sluice::card {

class VmHub {
 public:
  // Attaches itself to `registers`; all outlive this.
  VmHub(const HubModel& model, Memory& memory, Registers& registers);
  VmHub(const VmHub&) = delete;
  VmHub& operator=(const VmHub&) = delete;

  void reset();
  std::uint32_t fault_control() const { return fault_control_; }

  // Keeps the fault in the registers. The interrupt that tells the driver, unless the vmid's context has it
  // off.
  std::optional<InterruptEntry> report(const Fault& fault);

 private:
  void attach_contexts(Memory& memory, Registers& registers);
  void attach_invalidation(Registers& registers);
  void attach_faults(Registers& registers);

  const HubModel& model_;
  Memory& memory_;
  std::array<bool, reg::kInvalidateEngines> semaphore_held_{};
  std::array<std::uint32_t, reg::kInvalidateEngines> request_{};
  std::uint32_t fault_control_ = 0;
  std::uint32_t fault_status_ = 0;
  std::uint64_t fault_page_ = 0;
};

}  // namespace sluice::card
