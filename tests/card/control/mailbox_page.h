// SPDX-License-Identifier: MIT
// The page of BAR 5 through which a program in the guest gives the card commands. The program maps
// /sys/bus/pci/devices/.../resource5; it needs neither the driver nor a network. The page answers while no
// driver is bound, too, as long as the device's memory is enabled (sysfs: enable). No register of this chip
// is there.
//
// Every access has 4 bytes, little endian.
#pragma once

#include <cstdint>

namespace sluice::card::mailbox {

inline constexpr std::uint64_t kPage = 0x7e000;  // in BAR 5; the SDMA engines end below, 0x7f000 is HDP's
inline constexpr std::uint64_t kPageBytes = 0x1000;

// Offsets within the page.
inline constexpr std::uint64_t kMagicAt = 0;  // reads kMagic: there is a mailbox
inline constexpr std::uint64_t kLengthAt =
    4;  // written: runs so many bytes of the text; reads: the answer's length
inline constexpr std::uint64_t kTextAt = 0x800;  // the command, and then the answer

inline constexpr std::uint32_t kMagic = 0x6c756373;  // "scul"
inline constexpr std::uint64_t kTextBytes = kPageBytes - kTextAt;

}  // namespace sluice::card::mailbox
