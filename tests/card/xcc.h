// SPDX-License-Identifier: MIT
// One compute die: its command processor, its clock, and the card as its engines see it. They say "the GC
// hub" and name registers as the first XCC has them; here it becomes this one's hub and this one's registers,
// and what they send has this one's node id. An MI210 is one such die.
#pragma once

#include <cstdint>
#include <string_view>

#include "cp/command_processor.h"
#include "engine.h"
#include "models/model.h"
#include "registers/registers.h"

namespace sluice::card {

class Xcc final : public Chip {
 public:
  // Of `gpu`'s model the XCC `number`. Attaches itself to `registers`. All outlive this.
  Xcc(Chip& gpu, unsigned number, const Memory& memory, Registers& registers);

  void reset();
  CommandProcessor& command_processor() { return command_processor_; }
  const CommandProcessor& command_processor() const { return command_processor_; }

  // Chip, as engines of this die have it:
  std::uint32_t read_register(std::uint32_t byte) override { return gpu_.read_register(mine(byte)); }
  void write_register(std::uint32_t byte, std::uint32_t value) override {
    gpu_.write_register(mine(byte), value);
  }
  void interrupt(const InterruptEntry& entry) override;
  void report(const Fault& fault) override;
  AddressSpace space(Hub hub, unsigned vmid) override { return gpu_.space(mine(hub), vmid); }
  std::uint64_t clock() override { return gpu_.clock(); }
  const Model& model() const override { return gpu_.model(); }
  Partition partition() const override;
  std::uint32_t fault_control(Hub hub) const override { return gpu_.fault_control(mine(hub)); }
  Faults& faults() override { return gpu_.faults(); }
  Counters& counters() override { return gpu_.counters(); }
  bool tracing() const override { return gpu_.tracing(); }
  void trace(std::string_view line) override;

 private:
  void attach_clock();
  void attach_partition();
  std::uint32_t mine(std::uint32_t byte) const { return is_of_xcc(byte) ? byte + place_.registers : byte; }
  Hub mine(Hub hub) const { return hub == Hub::kGc ? gc_hub(number_) : hub; }

  Chip& gpu_;
  const unsigned number_;
  const XccModel& place_;
  RegisterBank registers_;
  CommandProcessor command_processor_;
  std::uint64_t captured_clock_ = 0;
  std::uint32_t safe_mode_ = 0;
  std::uint32_t partition_control_ = 0;
};

}  // namespace sluice::card
