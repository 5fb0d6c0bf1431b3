// SPDX-License-Identifier: MIT
// The GPU as the amdgpu driver sees it, of the parts in the folders beside this. Its model (models/model.h)
// says which kind of GPU it is.
//
// It is a Device to the bus and a Chip to its engines. Whatever a guest writes, nothing here throws or stops
// the process: what hardware answers with a fault is a fault, and the rest is latched and traced. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bus/device.h"
#include "control/trace.h"
#include "engine.h"
#include "interrupts/interrupt_ring.h"
#include "memory/memory.h"
#include "memory/vm_hub.h"
#include "models/model.h"
#include "registers/registers.h"
#include "sdma/rings.h"
#include "xcc.h"

namespace sluice::card {

class Gpu final : public Device, public Chip {
 public:
  // All outlive this. REQUIRES: vram is as long as BAR 0, a power of two of at least 16 MiB.
  Gpu(const Model& model, std::span<std::byte> vram, const GuestMemory& guest, Interrupt& interrupt,
      Trace& trace);

  // Device:
  void read(Bar bar, std::uint64_t offset, std::span<std::byte> out) override;
  void write(Bar bar, std::uint64_t offset, std::span<const std::byte> in) override;
  void reset() override;
  bool work() override;

  // Chip:
  std::uint32_t read_register(std::uint32_t byte) override;
  void write_register(std::uint32_t byte, std::uint32_t value) override;
  void interrupt(const InterruptEntry& entry) override;
  void report(const Fault& fault) override;
  AddressSpace space(Hub hub, unsigned vmid) override;
  std::uint64_t clock() override;
  const Model& model() const override { return model_; }
  std::uint32_t fault_control(Hub hub) const override {
    return hubs_[static_cast<std::size_t>(hub)]->fault_control();
  }
  Faults& faults() override { return faults_; }
  Counters& counters() override { return counters_; }
  bool tracing() const override { return trace_.on(); }
  void trace(std::string_view line) override { trace_.line(line); }

  // Registers that the table does not have: byte offset, and how often each was accessed.
  const std::map<std::uint32_t, std::uint64_t>& unknown_registers() const { return unknown_; }
  const Memory& memory() const { return memory_; }
  const CommandProcessor& command_processor(unsigned xcc = 0) const {
    return xccs_.at(xcc)->command_processor();
  }

 private:
  void attach_vram_window();
  void seen(char kind, std::uint32_t byte, std::uint32_t value);
  void ring(std::uint64_t offset, std::uint64_t value);
  std::uint64_t packets() const;  // executed so far

  const Model& model_;
  Trace& trace_;
  Faults faults_;
  Counters counters_;
  Memory memory_;
  Registers registers_;
  std::vector<std::unique_ptr<VmHub>> hubs_;  // by Hub's numbers
  InterruptRing interrupts_;
  std::vector<std::unique_ptr<Xcc>> xccs_;
  SdmaRings sdma_;
  std::map<std::uint32_t, std::uint64_t> unknown_;
};

}  // namespace sluice::card
