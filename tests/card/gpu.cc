// SPDX-License-Identifier: MIT
#include "gpu.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "models/partitions.h"
#include "registers/names.h"

namespace sluice::card {

namespace {

// The bus waits for its turn meanwhile.
constexpr std::chrono::milliseconds kLongestWork{20};

}  // namespace

Gpu::Gpu(const Model& model, std::span<std::byte> vram, const GuestMemory& guest, Interrupt& interrupt,
         Trace& trace)
    : model_(model),
      trace_(trace),
      memory_(vram, guest),
      registers_(model.registers, vram.size()),
      interrupts_(
          memory_, registers_, interrupt, [this] { return clock(); }, counters_),
      sdma_(*this, registers_) {
  for (const HubModel& hub : model.hubs) hubs_.push_back(std::make_unique<VmHub>(hub, memory_, registers_));
  for (unsigned xcc = 0; xcc < model.xccs.size(); ++xcc)
    xccs_.push_back(std::make_unique<Xcc>(*this, xcc, memory_, registers_));
  attach_vram_window();
  if (model.partition_status != 0) attach_partition_status(model, registers_);
  model.fill_vram(vram);
}

// VRAM by a pair of registers, as before its BAR is mapped (amdgpu_device_mm_access).
void Gpu::attach_vram_window() {
  const auto dword = [this]() -> std::span<std::byte> {
    const std::uint32_t index = registers_.latched(reg::kMmIndex);
    const std::uint64_t high = registers_.latched(reg::kMmIndexHi);
    const std::uint64_t offset = (index & 0x7ffffffcU) | high << 31;
    if ((index & 1U << 31) == 0 || offset >= memory_.vram().size()) return {};
    return memory_.vram().subspan(offset, 4);
  };
  registers_.attach(
      reg::kMmData,
      [dword] {
        std::uint32_t value = 0;
        if (const auto place = dword(); !place.empty()) std::memcpy(&value, place.data(), sizeof value);
        return value;
      },
      [dword](std::uint32_t value) {
        if (const auto place = dword(); !place.empty()) std::memcpy(place.data(), &value, sizeof value);
      });
}

void Gpu::reset() {
  for (const auto& xcc : xccs_) xcc->reset();
  sdma_.reset();
  interrupts_.reset();
  for (const auto& hub : hubs_) hub->reset();
  memory_.reset();
  registers_.reset();
  model_.fill_vram(memory_.vram());
  if (tracing()) trace("reset");
}

// ---- the bus ----

void Gpu::read(Bar bar, std::uint64_t offset, std::span<std::byte> out) {
  if (bar != Bar::kRegisters) {
    std::fill(out.begin(), out.end(), std::byte{0});  // doorbells cannot be read
    return;
  }
  while (!out.empty()) {
    const std::uint32_t value = read_register(static_cast<std::uint32_t>(offset & ~3ULL));
    std::byte bytes[4];
    std::memcpy(bytes, &value, sizeof bytes);
    const std::size_t skip = offset & 3;
    const std::size_t count = std::min<std::size_t>(4 - skip, out.size());
    std::memcpy(out.data(), bytes + skip, count);
    offset += count;
    out = out.subspan(count);
  }
}

void Gpu::write(Bar bar, std::uint64_t offset, std::span<const std::byte> in) {
  if (bar == Bar::kDoorbells) {
    std::uint64_t value = 0;
    if (in.size() > sizeof value) return;
    std::memcpy(&value, in.data(), in.size());
    ring(offset, value);
    return;
  }
  if (bar != Bar::kRegisters) return;
  // Registers are written whole: a part of one is what a driver that is well never writes.
  if (offset % 4 != 0 || in.size() % 4 != 0) {
    if (tracing())
      trace("odd write of registers at " + hex(offset) + ", " + std::to_string(in.size()) + " bytes");
    return;
  }
  for (; !in.empty(); in = in.subspan(4), offset += 4) {
    std::uint32_t value = 0;
    std::memcpy(&value, in.data(), sizeof value);
    write_register(static_cast<std::uint32_t>(offset), value);
  }
}

void Gpu::ring(std::uint64_t offset, std::uint64_t value) {
  ++counters_.doorbells;
  if ((registers_.latched(reg::kDoorbellAperEn) & 1) == 0) {
    ++counters_.stray_doorbells;
    return;
  }
  const bool interrupts = interrupts_.doorbell(offset, static_cast<std::uint32_t>(value));
  bool heard = interrupts;
  if (!interrupts) {
    // A queue of a process may be on several XCCs.
    for (const auto& xcc : xccs_) heard |= xcc->command_processor().doorbell(offset, value);
    heard = heard || sdma_.doorbell(offset, value);
  }
  if (!heard) ++counters_.stray_doorbells;
  if (tracing() && !interrupts) {
    trace("doorbell " + hex(offset) + " := " + hex(value) + (heard ? "" : ", nobody listens"));
  }
}

bool Gpu::work() {
  // One queue's packet may be what another one waits for, so they go on until none gets any further.
  const auto started = std::chrono::steady_clock::now();
  Queue::State state = Queue::State::kIdle;
  while (true) {
    const std::uint64_t before = packets();
    state = sdma_.work();
    for (const auto& xcc : xccs_) state = busier(state, xcc->command_processor().work());
    if (state == Queue::State::kIdle) return false;
    if (state == Queue::State::kWaiting && packets() == before) return true;
    if (std::chrono::steady_clock::now() - started > kLongestWork) return true;
  }
}

std::uint64_t Gpu::packets() const {
  return counters_.pm4_packets + counters_.user_packets + counters_.sdma_packets;
}

// ---- registers ----

void Gpu::seen(char kind, std::uint32_t byte, std::uint32_t value) {
  byte = registers_.target(byte);
  const RegisterRow* row = registers_.table().row(byte);
  if (row == nullptr) {
    ++counters_.unknown_registers;
    if (unknown_.size() < Registers::kMostLatched || unknown_.contains(byte)) ++unknown_[byte];
  }
  const bool port = row != nullptr && row->behaviour == Behaviour::kPort;  // microcode is not worth a line
  if (!tracing() || port || byte == reg::kPcieIndex2) return;
  char text[128];
  (void)std::snprintf(text, sizeof text, "%c 0x%05x %s 0x%08x", kind, byte,
                      registers_.table().name(byte).c_str(), value);
  trace(text);
}

std::uint32_t Gpu::read_register(std::uint32_t byte) {
  ++counters_.register_reads;
  const std::uint32_t value = registers_.read(byte);
  seen('R', byte, value);
  return value;
}

void Gpu::write_register(std::uint32_t byte, std::uint32_t value) {
  ++counters_.register_writes;
  seen('W', byte, value);
  registers_.write(byte, value);
}

// ---- what engines reach the rest by ----

void Gpu::interrupt(const InterruptEntry& entry) {
  if (tracing()) {
    char text[128];
    (void)std::snprintf(text, sizeof text,
                        "interrupt: client 0x%x source %u ring 0x%x vmid %u pasid 0x%x data 0x%x",
                        entry.client, entry.source, entry.ring_id, entry.vmid, entry.pasid, entry.data[0]);
    trace(text);
  }
  interrupts_.push(entry);
}

void Gpu::report(const Fault& fault) {
  ++counters_.vm_faults;
  if (tracing()) trace("VM fault: " + fault.text());
  if (const auto told = hubs_[static_cast<std::size_t>(fault.hub)]->report(fault)) interrupt(*told);
}

AddressSpace Gpu::space(Hub hub, unsigned vmid) {
  return AddressSpace::of_vmid(memory_, hub, vmid);
}

std::uint64_t Gpu::clock() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()) / 10;
}

}  // namespace sluice::card
