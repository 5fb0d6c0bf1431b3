// SPDX-License-Identifier: MIT
// Memory as an engine of the card sees it: addresses of one vmid, translated at each access.
//
// There are three kinds. vmid 0 of a hub is the driver's: the frame buffer (VRAM), the GART (a flat table)
// and, on Linux 6.1, AGP (bus addresses without a table). Any other vmid of a hub has four levels of tables,
// whose root is in the hub's registers. A process of KFD has its root from MAP_PROCESS: the scheduler
// firmware gives it a vmid, and no register names its root.
//
// Nothing is cached, so an access after an unmap is always a fault. Addresses are 48 bits: what is above is a
// sign extension and is cut off. A value type: two pointers and a few numbers; copy it. Valid as long as its
// Memory. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "memory/fault.h"

namespace sluice::card {

class Memory;  // memory/memory.h: VRAM, guest RAM and the registers of both hubs

class AddressSpace {
 public:
  // Of a vmid of a hub, 0..15, by the hub's registers as they are at each access.
  static AddressSpace of_vmid(const Memory& memory, Hub hub, unsigned vmid);
  // Of a process: `root` is the value of a page directory entry (address and flags), as MAP_PROCESS gives it.
  // `vmid` (KFD's: 3..15) and `pasid` go into faults and interrupts.
  static AddressSpace of_process(const Memory& memory, Hub hub, unsigned vmid, std::uint32_t pasid,
                                 std::uint64_t root);

  // The bytes at `address`: at least one and at most `length`, up to the end of its page, so go on from
  // there. Eight aligned bytes never cross a page. The span is VRAM or guest RAM itself; do not keep it
  // across anything that lets the guest or an engine run. REQUIRES: length > 0.
  OrFault<std::span<std::byte>> at(std::uint64_t address, std::size_t length, Access access) const;

  // All of `out`, or a fault; then `out` holds anything.
  OrFault<void> read(std::uint64_t address, std::span<std::byte> out) const;
  // All of `in`, or a fault; then the pages before the fault are written, as hardware leaves them.
  // Four or eight aligned bytes are written in one piece.
  OrFault<void> write(std::uint64_t address, std::span<const std::byte> in) const;

  // Little-endian words; `address` is rounded down to the word's size, as the engines do. In one piece.
  OrFault<std::uint32_t> load32(std::uint64_t address) const;
  OrFault<std::uint64_t> load64(std::uint64_t address) const;
  OrFault<void> store32(std::uint64_t address, std::uint32_t value) const;
  OrFault<void> store64(std::uint64_t address, std::uint64_t value) const;
  // Adds, atomically with what the processors of the guest do there; returns what was there before.
  OrFault<std::uint64_t> add64(std::uint64_t address, std::uint64_t value) const;

  Hub hub() const { return hub_; }
  unsigned vmid() const { return vmid_; }
  std::uint32_t pasid() const { return pasid_; }

 private:
  AddressSpace(const Memory& memory, Hub hub, unsigned vmid, std::uint32_t pasid,
               std::optional<std::uint64_t> root)
      : memory_(&memory), root_(root), pasid_(pasid), hub_(hub), vmid_(vmid) {}

  const Memory* memory_;
  std::optional<std::uint64_t> root_;  // of a process; else the hub's registers count
  std::uint32_t pasid_;
  Hub hub_;
  unsigned vmid_;
};

}  // namespace sluice::card
