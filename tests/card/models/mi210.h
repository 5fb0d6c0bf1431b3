// SPDX-License-Identifier: MIT
// Where an MI210 (Aldebaran, gfx90a) has its blocks. The driver adds offsets of its asic_reg headers to the
// bases of aldebaran_ip_offset.h.
#pragma once

#include <array>
#include <cstdint>

namespace sluice::card::mi210_places {

constexpr std::array<std::uint32_t, 2> kHubs = {0xa11c, 0x6ae1c};  // GC, MM; mmhub_1_7
constexpr std::uint32_t kApertures = 0x490;                        // in both
constexpr std::array<std::uint32_t, 5> kSdma = {0x4980, 0x6180, 0x78000, 0x79000, 0x7a000};
constexpr std::uint32_t kSdmaF32Cntl = 0xa8;  // sdma0_4_2

}  // namespace sluice::card::mi210_places
