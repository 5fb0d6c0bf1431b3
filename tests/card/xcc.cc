// SPDX-License-Identifier: MIT
#include "xcc.h"

#include <algorithm>
#include <string>

#include "models/partitions.h"
#include "registers/names.h"

namespace sluice::card {

Xcc::Xcc(Chip& gpu, unsigned number, const Memory& memory, Registers& registers)
    : gpu_(gpu),
      number_(number),
      place_(gpu.model().xccs.at(number)),
      registers_(registers, place_.registers),
      command_processor_(*this, memory, registers_) {
  attach_clock();
  if (model().partition_control != 0) attach_partition();
}

void Xcc::attach_clock() {
  registers_.attach(
      reg::kRlcCaptureClock, [] { return 0; }, [this](std::uint32_t) { captured_clock_ = clock(); });
  registers_.attach(
      reg::kRlcClockLsb, [this] { return static_cast<std::uint32_t>(captured_clock_); },
      [](std::uint32_t) {});
  registers_.attach(
      reg::kRlcClockMsb, [this] { return static_cast<std::uint32_t>(captured_clock_ >> 32); },
      [](std::uint32_t) {});
  // Bit 0 asks for safe mode to be entered or left, which is done at once.
  registers_.attach(
      reg::kRlcSafeMode, [this] { return safe_mode_; },
      [this](std::uint32_t value) { safe_mode_ = value & ~1U; });
}

// All XCCs are one GPU until the driver says otherwise.
void Xcc::attach_partition() {
  partition_control_ = partition_control(number_, static_cast<unsigned>(model().xccs.size()));
  registers_.attach(
      model().partition_control, [this] { return partition_control_; },
      [this](std::uint32_t value) { partition_control_ = value; });
}

Partition Xcc::partition() const {
  Partition partition;
  if (model().partition_control == 0) return partition;
  const XccsOfPartition mine = xccs_of_partition(partition_control_);
  const auto all = static_cast<unsigned>(model().xccs.size());
  partition.xcc = mine.number;
  partition.xccs = std::clamp(mine.count, 1U, all);
  const unsigned partitions = all / partition.xccs;
  const auto engines = static_cast<unsigned>(model().sdma.size());
  partition.first_sdma = number_ / partition.xccs * ((engines + partitions - 1) / partitions);
  return partition;
}

void Xcc::reset() {
  command_processor_.reset();
  safe_mode_ = 0;
  partition_control_ = partition_control(number_, static_cast<unsigned>(model().xccs.size()));
}

void Xcc::interrupt(const InterruptEntry& entry) {
  InterruptEntry sent = entry;
  if (!entry.mm_hub) sent.node = place_.node;
  if (entry.client != kIhGrbmCp || command_processor_.sends(entry)) gpu_.interrupt(sent);
}

void Xcc::report(const Fault& fault) {
  Fault told = fault;
  told.hub = mine(fault.hub);
  gpu_.report(told);
}

void Xcc::trace(std::string_view line) {
  if (number_ == 0) return gpu_.trace(line);
  gpu_.trace("xcc" + std::to_string(number_) + " " + std::string(line));
}

}  // namespace sluice::card
