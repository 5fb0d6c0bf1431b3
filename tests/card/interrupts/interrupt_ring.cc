// SPDX-License-Identifier: MIT
#include "interrupts/interrupt_ring.h"

#include <array>
#include <cstring>
#include <utility>

#include "memory/address_space.h"
#include "registers/names.h"

namespace sluice::card {

namespace {

constexpr std::uint32_t kEntryBytes = 32;

// Fields of IH_RB_CNTL.
constexpr std::uint32_t kEnable = 1 << 0;
constexpr std::uint32_t kWriteBack = 1 << 8;
constexpr std::uint32_t kOverflowEnable = 1 << 16;
constexpr std::uint32_t kEnableInterrupt = 1 << 17;
constexpr unsigned kSpaceShift = 28;  // 1: bus addresses
constexpr std::uint32_t kOverflowClear = 1U << 31;

constexpr std::uint32_t kOverflow = 1 << 0;         // of IH_RB_WPTR
constexpr std::uint32_t kDoorbellEnable = 1 << 28;  // of IH_DOORBELL_RPTR

}  // namespace

InterruptRing::InterruptRing(const Memory& memory, Registers& registers, Interrupt& interrupt,
                             std::function<std::uint64_t()> clock, Counters& counters)
    : memory_(memory),
      registers_(registers),
      interrupt_(interrupt),
      clock_(std::move(clock)),
      counters_(counters) {
  registers.attach(
      reg::kIhRbCntl, [this] { return control_; },
      [this](std::uint32_t value) {
        if ((value & kOverflowClear) != 0) write_ &= ~kOverflow;
        control_ = value;
      });
  registers.attach(reg::kIhRbBase, &base_);
  registers.attach(reg::kIhRbBaseHi, &base_hi_);
  registers.attach(reg::kIhRbRptr, &read_);
  registers.attach(reg::kIhRbWptr, &write_);
  registers.attach(reg::kIhRbWptrAddrLo, &write_address_lo_);
  registers.attach(reg::kIhRbWptrAddrHi, &write_address_hi_);
  registers.attach(reg::kIhDoorbellRptr, &doorbell_);
}

void InterruptRing::reset() {
  control_ = base_ = base_hi_ = read_ = write_ = write_address_lo_ = write_address_hi_ = doorbell_ = 0;
}

bool InterruptRing::store(std::uint64_t address, std::span<const std::byte> bytes) const {
  if ((control_ >> kSpaceShift & 7) == 1) {
    const std::span<std::byte> target = memory_.guest().at(address, bytes.size());
    if (target.empty()) return false;
    std::memcpy(target.data(), bytes.data(), bytes.size());
    return true;
  }
  return AddressSpace::of_vmid(memory_, Hub::kMm, 0).write(address, bytes).ok();
}

void InterruptRing::write_back() {
  if ((control_ & kWriteBack) == 0) return;
  const std::uint64_t address = write_address_lo_ | static_cast<std::uint64_t>(write_address_hi_ & 0xffff)
                                                        << 32;
  (void)store(address, std::as_bytes(std::span(&write_, 1)));
}

void InterruptRing::push(const InterruptEntry& entry) {
  const std::uint64_t ring_bytes = bytes();
  if ((control_ & kEnable) == 0 || ring_bytes < std::uint64_t{2} * kEntryBytes) {
    ++counters_.lost_interrupts;
    return;
  }
  const std::uint32_t mask = static_cast<std::uint32_t>(ring_bytes - 1);
  const std::uint32_t at = write_ & mask & ~(kEntryBytes - 1);
  const std::uint32_t next = (at + kEntryBytes) & mask;
  const bool full = next == (read_ & mask);
  if (full && (control_ & kOverflowEnable) == 0) {
    ++counters_.lost_interrupts;
    return;
  }

  std::uint32_t pasid = entry.pasid;
  if (pasid == 0 && entry.vmid != 0) {
    pasid = registers_.latched((entry.mm_hub ? reg::kIhVmidLutMm : reg::kIhVmidLut) + 4 * entry.vmid);
  }
  const std::uint64_t now = clock_();
  const std::array<std::uint32_t, 8> words = {
      (entry.client & 0xff) | (entry.source & 0xff) << 8 | (entry.ring_id & 0xff) << 16 |
          (entry.vmid & 0xf) << 24 | (entry.mm_hub ? 1U << 31 : 0U),
      static_cast<std::uint32_t>(now),
      static_cast<std::uint32_t>(now >> 32 & 0xffff),
      (pasid & 0xffff) | (entry.node & 0xff) << 16,
      entry.data[0],
      entry.data[1],
      entry.data[2],
      entry.data[3],
  };
  const std::uint64_t base =
      static_cast<std::uint64_t>(base_) << 8 | static_cast<std::uint64_t>(base_hi_ & 0xff) << 40;
  if (!store(base + at, std::as_bytes(std::span(words)))) {
    ++counters_.lost_interrupts;
    return;
  }
  write_ = next | (write_ & kOverflow);
  if (full) {
    // The oldest entry is gone: what the driver reads next is the one after it.
    write_ |= kOverflow;
    read_ = (next + kEntryBytes) & mask;
    ++counters_.lost_interrupts;
  }
  write_back();
  ++counters_.interrupts;
  if ((control_ & kEnableInterrupt) != 0) interrupt_.raise();
}

bool InterruptRing::doorbell(std::uint64_t offset, std::uint32_t value) {
  if ((doorbell_ & kDoorbellEnable) == 0 || offset != std::uint64_t{doorbell_ & 0x03ffffff} * 4) return false;
  read_ = value;
  return true;
}

}  // namespace sluice::card
