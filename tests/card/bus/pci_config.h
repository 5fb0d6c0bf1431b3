// SPDX-License-Identifier: MIT
// The PCI configuration space of a card: ids, BARs 0, 2 and 5, the ROM, MSI with one vector, a PCI Express
// endpoint. Every bit that a guest may change is named; all others stay, whatever is written.
//
// QEMU reads all of it once. It then keeps BARs and MSI itself and sends each write here, too. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "bus/device.h"

namespace sluice::card {

struct Model;

constexpr std::uint16_t kVendorId = 0x1002;
constexpr std::size_t kConfigBytes = 4096;

class PciConfig {
 public:
  // REQUIRES: both sizes are powers of two; rom_bytes is 0 (none) or at least 2048.
  PciConfig(const Model& model, std::uint64_t vram_bytes, std::uint64_t rom_bytes);

  // REQUIRES: the range is inside the space.
  void read(std::size_t offset, std::span<std::byte> out) const;
  void write(std::size_t offset, std::span<const std::byte> in);

  // As after power on.
  void reset();

  // Whether the card answers at its BARs.
  bool memory_enabled() const;
  // Where the guest has put a BAR; 0 while it is nowhere.
  std::uint64_t address(Bar bar) const;

 private:
  void set(std::size_t offset, std::uint64_t value, std::size_t bytes, std::uint64_t writable = 0);
  std::uint64_t get(std::size_t offset, std::size_t bytes) const;

  std::array<std::byte, kConfigBytes> values_{};
  std::array<std::byte, kConfigBytes> at_power_on_{};
  std::array<std::byte, kConfigBytes> writable_{};
};

}  // namespace sluice::card
