// SPDX-License-Identifier: MIT
// The driver's rings of the SDMA engines, by the engines' registers: RB_CNTL's bit 0 starts a ring out of the
// others and stops it (sdma_v4_0_gfx_resume, sdma_v4_0_gfx_enable); the doorbell, or RB_WPTR, says how far it
// is written.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine.h"
#include "registers/names.h"
#include "registers/registers.h"

namespace sluice::card {

class SdmaRings {
 public:
  // Attaches itself to `registers`. Both outlive this.
  SdmaRings(Chip& chip, Registers& registers);
  SdmaRings(const SdmaRings&) = delete;
  SdmaRings& operator=(const SdmaRings&) = delete;

  void reset();
  bool doorbell(std::uint64_t offset, std::uint64_t value);
  // Lets each ring step: kReady while one has more to do, else kWaiting while one waits.
  Queue::State work();

 private:
  void attach(unsigned number);
  void control(unsigned number, std::uint32_t value);
  std::uint64_t pair(std::uint32_t base, std::uint32_t low, std::uint32_t high) const;

  Chip& chip_;
  Registers& registers_;
  struct Engine {
    std::uint32_t base = 0;  // of its registers
    std::unique_ptr<Queue> ring;
    std::uint32_t control = 0;
    std::uint64_t read = 0;   // while the ring stands
    std::uint32_t write = 0;  // while the ring stands
  };
  std::vector<Engine> engines_;
  // Stopped by a register write, perhaps of a packet in the very ring: they go when nobody steps.
  std::vector<std::unique_ptr<Queue>> stopped_;
};

}  // namespace sluice::card
