// SPDX-License-Identifier: MIT
// The discovery table: which IP blocks a chip has, in which versions, and where their registers are. Chips
// since 2020 have it in the last 64 KiB of VRAM, and the driver knows nothing about them but this.
//
// The form is that of include/discovery.h in the Linux kernel; amdgpu_discovery.c reads it. Bases are dword
// addresses, so the chip's file chooses where its blocks are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::card {

// One instance of an IP block.
struct IpBlock {
  std::uint16_t id = 0;  // include/soc15_hw_ip.h
  std::uint8_t instance = 0;
  std::uint8_t major = 0, minor = 0, revision = 0;
  std::vector<std::uint32_t> bases;  // dword addresses, by the BASE_IDX of the asic_reg headers
};

// Of each XCC.
struct ComputeUnits {
  std::uint32_t engines = 0, units_of_engine = 0;
  std::uint32_t backends_of_engine = 0, texture_caches = 0;
};

// REQUIRES: blocks take less than 8 KiB.
std::vector<std::byte> make_discovery_table(std::span<const IpBlock> blocks, const ComputeUnits& units);

// Where it is, from the end of VRAM.
constexpr std::size_t kDiscoveryFromEnd = 64 << 10;

}  // namespace sluice::card
