// SPDX-License-Identifier: MIT
// A card without a bus and without engines of its own: memory, page tables of one process, and whatever
// queues tell the rest of the card. For tests of queues. One thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine.h"
#include "memory/address_space.h"
#include "memory/memory.h"
#include "models/model.h"
#include "registers/names.h"

namespace sluice::card::tests {

class NoGuestMemory : public GuestMemory {
 public:
  std::span<std::byte> at(std::uint64_t, std::size_t) const override { return {}; }
};

// 8 MiB of VRAM. The driver has the first MiB (vmid 0: from kFbBase on). The second one is the process':
// mapped from kProcess on except the last page, and its page tables are at 4 MiB.
class LooseChip : public Chip {
 public:
  static constexpr std::uint64_t kDriver = kFbBase, kProcess = 0x10000000, kProcessBytes = 0xff000;
  static constexpr unsigned kVmid = 5, kKfdVmid = 8, kPasid = 0x8003;
  static constexpr std::uint64_t kRoot = 0x400000 | entry::kValid;

  LooseChip() : vram_(8 << 20), memory_(vram_, guest_) {
    memory_.reset();
    put_vram(0x400000, 0x401000 | entry::kValid);
    put_vram(0x401000, 0x402000 | entry::kValid);
    put_vram(0x402000 + 8 * (kProcess >> 21), 0x403000 | entry::kValid | entry::kFurther);
    for (std::uint64_t at = 0; at < kProcessBytes; at += kPageBytes) map(kProcess + at, 0x100000 + at);
    HubRegisters::Context& context = memory_.hub(Hub::kMm).contexts[kVmid];
    context.control = 1;
    context.base_lo = static_cast<std::uint32_t>(kRoot);
  }

  void map(std::uint64_t va, std::uint64_t vram) {
    put_vram(0x403000 + 8 * (va >> 12 & 0x1ff), vram | entry::kValid | entry::kRead | entry::kWrite);
  }
  void unmap(std::uint64_t va) { put_vram(0x403000 + 8 * (va >> 12 & 0x1ff), 0); }

  AddressSpace process(Hub hub) const {
    return AddressSpace::of_process(memory_, hub, kKfdVmid, kPasid, kRoot);
  }
  // Of the driver, or of the process.
  std::byte* at(std::uint64_t va) {
    return vram_.data() + (va >= kDriver ? va - kDriver : 0x100000 + (va - kProcess));
  }
  template <class T>
  T get(std::uint64_t va) {
    T value;
    std::memcpy(&value, at(va), sizeof value);
    return value;
  }
  template <class T>
  void put(std::uint64_t va, const T& value) {
    std::memcpy(at(va), &value, sizeof value);
  }
  // Dwords at `va`; the address behind them.
  std::uint64_t put_dwords(std::uint64_t va, const std::vector<std::uint32_t>& dwords) {
    std::memcpy(at(va), dwords.data(), 4 * dwords.size());
    return va + 4 * dwords.size();
  }

  std::uint32_t read_register(std::uint32_t byte) override { return registers[byte]; }
  void write_register(std::uint32_t byte, std::uint32_t value) override { registers[byte] = value; }
  void interrupt(const InterruptEntry& entry) override { interrupts.push_back(entry); }
  void report(const Fault& fault) override { reported.push_back(fault); }
  AddressSpace space(Hub hub, unsigned vmid) override { return AddressSpace::of_vmid(memory_, hub, vmid); }
  std::uint64_t clock() override { return now; }
  const Model& model() const override { return mi210(); }
  std::uint32_t fault_control(Hub hub) const override {
    const auto found = registers.find(model().of(hub).base + reg::hub::kFaultCntl);
    return found == registers.end() ? 0 : found->second;
  }
  Faults& faults() override { return faults_; }
  Counters& counters() override { return counters_; }
  bool tracing() const override { return true; }
  void trace(std::string_view line) override { lines.emplace_back(line); }

  std::map<std::uint32_t, std::uint32_t> registers;  // by byte
  std::vector<InterruptEntry> interrupts;
  std::vector<Fault> reported;
  std::vector<std::string> lines;
  std::uint64_t now = 1000;  // of the clock of 100 MHz

 private:
  void put_vram(std::uint64_t at, std::uint64_t value) {
    std::memcpy(vram_.data() + at, &value, sizeof value);
  }

  std::vector<std::byte> vram_;
  NoGuestMemory guest_;
  Memory memory_;
  Faults faults_;
  Counters counters_;
};

constexpr std::uint32_t low(std::uint64_t value) {
  return static_cast<std::uint32_t>(value);
}
constexpr std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

}  // namespace sluice::card::tests
