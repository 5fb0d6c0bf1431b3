// SPDX-License-Identifier: MIT
// What the card can address: VRAM, the guest's memory, and the registers of the hubs that say how
// addresses become one or the other. Addresses of engines are in address_space.h; this is below it.
//
// Facts are those of gmc_v9_0.c, gfxhub_v1_0.c, mmhub_v1_7.c and amdgpu_vm.h (flag bits of entries).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "bus/device.h"
#include "memory/fault.h"

namespace sluice::card {

// Where the frame buffer begins in the address space of vmid 0: FB_LOCATION_BASE is preset to it.
constexpr std::uint64_t kFbBase = 0x8000000000;
constexpr unsigned kVmids = 16;
constexpr std::uint64_t kPageBytes = 4096;

// Bits of page table entries.
namespace entry {
constexpr std::uint64_t kValid = 1 << 0;
constexpr std::uint64_t kSystem = 1 << 1;  // a bus address; else an offset in VRAM
constexpr std::uint64_t kRead = 1 << 5;
constexpr std::uint64_t kWrite = 1 << 6;
// Not valid: reads as 0, and what is written is lost.
constexpr std::uint64_t kPartial = std::uint64_t{1} << 51;
constexpr std::uint64_t kIsPte = std::uint64_t{1} << 54;    // a page, above the last level
constexpr std::uint64_t kFurther = std::uint64_t{1} << 56;  // third level: a table, not a page of 2 MiB
constexpr std::uint64_t kPageAddress = 0x0000'ffff'ffff'f000;
constexpr std::uint64_t kTableAddress = 0x0000'ffff'ffff'ffc0;
}  // namespace entry

// Registers of one hub that say how addresses are translated, as they were written.
struct HubRegisters {
  struct Context {
    std::uint32_t control = 0;  // bit 0: on
    std::uint32_t base_lo = 0, base_hi = 0;
    std::uint32_t start_lo = 0, start_hi = 0;  // page numbers
    std::uint32_t end_lo = 0, end_hi = 0;      // page numbers, the last one
  };
  std::array<Context, kVmids> contexts;
  std::uint32_t fb_base = 0, fb_top = 0;                           // address >> 24, both included
  std::uint32_t agp_bottom = 0xffffff, agp_top = 0, agp_base = 0;  // address >> 24, both included
};

// One piece of memory that an address leads to.
struct Reached {
  std::byte* bytes = nullptr;
  std::uint64_t count = 0;  // up to the end of the page
};

class Memory {
 public:
  // `vram` and `guest` outlive this.
  Memory(std::span<std::byte> vram, const GuestMemory& guest);

  HubRegisters& hub(Hub hub) { return hubs_[static_cast<std::size_t>(hub)]; }
  const HubRegisters& hub(Hub hub) const { return hubs_[static_cast<std::size_t>(hub)]; }
  // As after power on: contexts off, the frame buffer at kFbBase.
  void reset();

  std::span<std::byte> vram() const { return vram_; }
  const GuestMemory& guest() const { return guest_; }

  // Translates `address` (48 bits) of vmid 0 by the apertures and the GART of `hub`. What is asked for is in
  // `request`, which becomes the fault's.
  OrFault<Reached> reach_vmid0(Fault request, std::uint64_t length) const;
  // By four levels of tables, whose root entry is `root`.
  OrFault<Reached> reach_by_tables(Fault request, std::uint64_t root, std::uint64_t length) const;

 private:
  // Entry `index` of the table that `table` (an entry itself) points at; nothing where that is no memory.
  OrFault<std::uint64_t> load_entry(const Fault& request, std::uint64_t table, std::uint64_t index) const;
  // The memory that the page entry `page` stands for, `offset` bytes into a page of `page_bytes`. A large
  // page begins at any page of 4 KiB: the driver chooses sizes by addresses of the vmid alone
  // (amdgpu_vm_pte_fragment).
  OrFault<Reached> page(const Fault& request, std::uint64_t page, std::uint64_t page_bytes,
                        std::uint64_t offset, std::uint64_t length) const;
  // What is at the address if its entry is one of AMDGPU_VM_PAGE_PRT.
  Reached nowhere(const Fault& request, std::uint64_t length) const;
  OrFault<Reached> in_vram(const Fault& request, std::uint64_t offset, std::uint64_t length) const;
  OrFault<Reached> on_bus(const Fault& request, std::uint64_t address, std::uint64_t length) const;

  std::span<std::byte> vram_;
  const GuestMemory& guest_;
  std::array<HubRegisters, kMostHubs> hubs_;
  struct Nowhere {
    alignas(8) std::array<std::byte, kPageBytes> read{};  // stays 0
    alignas(8) std::array<std::byte, kPageBytes> written{};
  };
  std::unique_ptr<Nowhere> nowhere_ = std::make_unique<Nowhere>();
};

}  // namespace sluice::card
