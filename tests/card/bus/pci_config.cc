// SPDX-License-Identifier: MIT
// Offsets and bits: linux/pci_regs.h.
#include "bus/pci_config.h"

#include <linux/pci_regs.h>

#include <algorithm>
#include <cstring>

#include "models/model.h"

namespace sluice::card {
namespace {

constexpr std::size_t kMsi = 0x60;
constexpr std::size_t kExpress = 0x80;
constexpr std::uint32_t kAllBits = 0xffffffff;

constexpr std::size_t bar_offset(Bar bar) {
  return PCI_BASE_ADDRESS_0 + 4 * static_cast<std::size_t>(bar);
}

}  // namespace

PciConfig::PciConfig(const Model& model, std::uint64_t vram_bytes, std::uint64_t rom_bytes) {
  set(PCI_VENDOR_ID, kVendorId, 2);
  set(PCI_DEVICE_ID, model.device_id, 2);
  set(PCI_COMMAND, 0, 2,
      PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_PARITY | PCI_COMMAND_SERR |
          PCI_COMMAND_INTX_DISABLE);
  set(PCI_STATUS, PCI_STATUS_CAP_LIST, 2);
  set(PCI_REVISION_ID, 2, 1);
  set(PCI_CLASS_DEVICE, 0x0380, 2);  // a display, and not VGA: nothing boots from it, nobody arbitrates it
  set(PCI_CACHE_LINE_SIZE, 0, 1, 0xff);
  set(PCI_SUBSYSTEM_VENDOR_ID, kVendorId, 2);
  set(PCI_SUBSYSTEM_ID, model.subsystem_id, 2);
  set(PCI_CAPABILITY_LIST, kMsi, 1);
  set(PCI_INTERRUPT_LINE, 0, 1, 0xff);

  // The bits of a BAR that cannot be set tell its size.
  constexpr std::uint32_t kWide = PCI_BASE_ADDRESS_MEM_TYPE_64 | PCI_BASE_ADDRESS_MEM_PREFETCH;
  set(bar_offset(Bar::kVram), kWide, 8, ~(vram_bytes - 1));
  set(bar_offset(Bar::kDoorbells), kWide, 8, ~(kDoorbellBytes - 1));
  set(bar_offset(Bar::kRegisters), 0, 4, kAllBits & ~(kRegisterBytes - 1));
  if (rom_bytes != 0) set(PCI_ROM_ADDRESS, 0, 4, (kAllBits & ~(rom_bytes - 1)) | PCI_ROM_ADDRESS_ENABLE);

  set(kMsi, PCI_CAP_ID_MSI, 1);
  set(kMsi + PCI_CAP_LIST_NEXT, kExpress, 1);
  set(kMsi + PCI_MSI_FLAGS, PCI_MSI_FLAGS_64BIT, 2, PCI_MSI_FLAGS_ENABLE | PCI_MSI_FLAGS_QSIZE);
  set(kMsi + PCI_MSI_ADDRESS_LO, 0, 4, kAllBits & ~3U);
  set(kMsi + PCI_MSI_ADDRESS_HI, 0, 4, kAllBits);
  set(kMsi + PCI_MSI_DATA_64, 0, 2, 0xffff);

  constexpr std::uint32_t kWidth16 = 16 << 4;
  set(kExpress, PCI_CAP_ID_EXP, 1);
  set(kExpress + PCI_EXP_FLAGS, 2, 2);  // version 2, endpoint
  set(kExpress + PCI_EXP_DEVCAP, PCI_EXP_DEVCAP_RBER | PCI_EXP_DEVCAP_EXT_TAG, 4);
  set(kExpress + PCI_EXP_DEVCTL, 0, 2,
      0x7fff);  // all but the function's reset, which DEVCAP does not promise
  set(kExpress + PCI_EXP_LNKCAP, PCI_EXP_LNKCAP_SLS_16_0GB | kWidth16, 4);
  set(kExpress + PCI_EXP_LNKCTL, 0, 2, PCI_EXP_LNKCTL_ASPMC | PCI_EXP_LNKCTL_RCB | PCI_EXP_LNKCTL_CCC);
  set(kExpress + PCI_EXP_LNKSTA, PCI_EXP_LNKSTA_CLS_16_0GB | kWidth16 | PCI_EXP_LNKSTA_SLC, 2);
  set(kExpress + PCI_EXP_DEVCAP2, PCI_EXP_DEVCAP2_ATOMIC_COMP32 | PCI_EXP_DEVCAP2_ATOMIC_COMP64, 4);
  set(kExpress + PCI_EXP_DEVCTL2, 0, 2, PCI_EXP_DEVCTL2_COMP_TIMEOUT | PCI_EXP_DEVCTL2_ATOMIC_REQ);
  set(kExpress + PCI_EXP_LNKCAP2,
      PCI_EXP_LNKCAP2_SLS_2_5GB | PCI_EXP_LNKCAP2_SLS_5_0GB | PCI_EXP_LNKCAP2_SLS_8_0GB |
          PCI_EXP_LNKCAP2_SLS_16_0GB,
      4);
  at_power_on_ = values_;
}

void PciConfig::read(std::size_t offset, std::span<std::byte> out) const {
  std::memcpy(out.data(), values_.data() + offset, out.size());
}

void PciConfig::write(std::size_t offset, std::span<const std::byte> in) {
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::byte may = writable_[offset + i];
    values_[offset + i] = (values_[offset + i] & ~may) | (in[i] & may);
  }
}

void PciConfig::reset() {
  values_ = at_power_on_;
}

bool PciConfig::memory_enabled() const {
  return (get(PCI_COMMAND, 2) & PCI_COMMAND_MEMORY) != 0;
}

std::uint64_t PciConfig::address(Bar bar) const {
  const std::size_t offset = bar_offset(bar);
  const bool wide = (get(offset, 4) & PCI_BASE_ADDRESS_MEM_TYPE_64) != 0;
  return get(offset, wide ? 8 : 4) & ~std::uint64_t{0xf};
}

void PciConfig::set(std::size_t offset, std::uint64_t value, std::size_t bytes, std::uint64_t writable) {
  for (std::size_t i = 0; i < bytes; ++i) {
    values_[offset + i] = static_cast<std::byte>(value >> (8 * i));
    writable_[offset + i] = static_cast<std::byte>(writable >> (8 * i));
  }
}

std::uint64_t PciConfig::get(std::size_t offset, std::size_t bytes) const {
  std::uint64_t value = 0;
  for (std::size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<std::uint8_t>(values_[offset + i]);
  return value;
}

}  // namespace sluice::card
