// SPDX-License-Identifier: MIT
// What is between the bus and the GPU on it. The bus (vfio_user.h) drives a Device and gives it two things to
// reach the guest with: its memory, and an interrupt.
//
// All calls are made on one thread, that of the serve loop. Nothing here throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice::card {

// PCI's number of each region of memory that the card has.
enum class Bar : std::uint8_t { kVram = 0, kDoorbells = 2, kRegisters = 5 };

constexpr std::uint64_t kDoorbellBytes = 2 << 20;    // BAR 2
constexpr std::uint64_t kRegisterBytes = 512 << 10;  // BAR 5

// Implemented by the GPU. The guest's processor reads and writes VRAM without a word to anyone: QEMU maps it.
class Device {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  // Bar::kRegisters or Bar::kDoorbells. [offset, offset + length) is inside the BAR, of any length and
  // alignment: a guest chooses both. Doorbells come in 4 or 8 bytes, registers in 4, from a driver that is
  // well.
  virtual void read(Bar bar, std::uint64_t offset, std::span<std::byte> out) = 0;
  virtual void write(Bar bar, std::uint64_t offset, std::span<const std::byte> in) = 0;

  // As after power on. What is in VRAM may stay.
  virtual void reset() = 0;

  // Lets engines go on that have something to do, for a bounded time: QEMU waits five seconds at most for an
  // answer that this delays. True while one still has, or waits for memory to change, which nobody announces:
  // the bus calls again soon.
  virtual bool work() = 0;
};

// The guest's memory as devices see it, by bus address (guest-physical: there is no IOMMU).
class GuestMemory {
 public:
  GuestMemory() = default;
  GuestMemory(const GuestMemory&) = delete;
  GuestMemory& operator=(const GuestMemory&) = delete;
  virtual ~GuestMemory() = default;

  // All of [bus_address, bus_address + length), or nothing where a part of it is not mapped or is in another
  // map. Good until the next call of Device: the guest may write it at any moment, so that what is read twice
  // may differ.
  virtual std::span<std::byte> at(std::uint64_t bus_address, std::size_t length) const = 0;
};

// The one MSI of the card.
class Interrupt {
 public:
  Interrupt() = default;
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  virtual ~Interrupt() = default;

  // Nothing happens while the guest has not enabled it.
  virtual void raise() = 0;
};

}  // namespace sluice::card
