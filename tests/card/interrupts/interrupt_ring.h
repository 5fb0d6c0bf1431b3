// SPDX-License-Identifier: MIT
// The interrupt handler block (IH): a ring of entries of 32 bytes in memory, its write pointer in a register
// and in memory, and the MSI. Rings 1 and 2 of the block stay empty.
//
// Facts: vega20_ih.c, amdgpu_ih.c, osssys_4_2_0_sh_mask.h. A ring that is full overwrites its oldest entry
// and says so by RB_OVERFLOW (bit 0 of the write pointer) until the driver has it cleared; the driver goes on
// at the oldest one that is left.
#pragma once

#include <cstdint>
#include <functional>

#include "engine.h"
#include "memory/memory.h"
#include "registers/registers.h"

namespace sluice::card {

class InterruptRing {
 public:
  // Attaches itself to `registers`. `clock` gives time stamps. All outlive this.
  InterruptRing(const Memory& memory, Registers& registers, Interrupt& interrupt,
                std::function<std::uint64_t()> clock, Counters& counters);
  InterruptRing(const InterruptRing&) = delete;
  InterruptRing& operator=(const InterruptRing&) = delete;

  void reset();

  // Writes an entry and raises the MSI. Lost where the driver has not set the ring up. An entry of a job (a
  // vmid without pasid) gets the pasid of the vmid's LUT.
  void push(const InterruptEntry& entry);

  // True when the doorbell is the ring's read pointer.
  bool doorbell(std::uint64_t offset, std::uint32_t value);

 private:
  std::uint64_t bytes() const { return std::uint64_t{4} << (control_ >> 1 & 0x1f); }
  // Memory of the ring: a bus address, or one of vmid 0. False where there is none.
  bool store(std::uint64_t address, std::span<const std::byte> bytes) const;
  void write_back();

  const Memory& memory_;
  Registers& registers_;
  Interrupt& interrupt_;
  std::function<std::uint64_t()> clock_;
  Counters& counters_;

  std::uint32_t control_ = 0;
  std::uint32_t base_ = 0, base_hi_ = 0;
  std::uint32_t read_ = 0, write_ = 0;  // bytes; bit 0 of write_: overflow
  std::uint32_t write_address_lo_ = 0, write_address_hi_ = 0;
  std::uint32_t doorbell_ = 0;
};

}  // namespace sluice::card
