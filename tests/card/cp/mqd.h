// SPDX-License-Identifier: MIT
// Memory queue descriptors: where a queue's state is while no engine has it. Dword indices are those of
// v9_structs.h; dwords 128 to 183 of a compute MQD are the registers of a hardware queue slot in their order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace sluice::card::mqd {

// v9_mqd
namespace compute {
constexpr std::size_t kSlot = 128;       // the slot's registers begin here ...
constexpr std::size_t kSlotDwords = 56;  // ... and are so many
constexpr std::size_t kDwords = 227;     // that are of interest
// Bytes from one XCC's MQD of a queue to the next one's; 0: the chip has one XCC.
constexpr std::size_t kStride = 226;
// Indices into a slot's registers.
constexpr std::size_t kMqdBase = 0;  // and 1: address of the MQD
constexpr std::size_t kActive = 2;   // bit 0
constexpr std::size_t kVmid = 3;
constexpr std::size_t kPqBase = 8;         // and 9: address of the ring >> 8
constexpr std::size_t kPqRptr = 10;        // dwords
constexpr std::size_t kPqRptrReport = 11;  // and 12
constexpr std::size_t kPqDoorbell = 15;    // bits 2-27: dword in BAR 2; bit 30: on
constexpr std::size_t kPqControl = 17;     // bits 0-5: ring of 2^(n+1) dwords
constexpr std::size_t kDequeueRequest = 24;
constexpr std::size_t kSaveBase = 43;         // and 44: address of the context save area, in the process
constexpr std::size_t kStackOffset = 46;      // of the control stack: falls from its size
constexpr std::size_t kStackSize = 47;        // bytes; 0: no waves can be saved
constexpr std::size_t kWaveStateOffset = 48;  // in the save area: rises from the stack's size
constexpr std::size_t kSaveSize = 49;         // bytes of the save area
constexpr std::size_t kAqlControl = 53;       // bit 0: packets are AQL
constexpr std::size_t kPqWptr = 54;           // and 55: dwords
}  // namespace compute

// v9_sdma_mqd
namespace sdma {
constexpr std::size_t kRbCntl = 0;  // bits 1-5: ring of 2^n dwords
constexpr std::size_t kRbBase = 1;  // and 2: address >> 8
constexpr std::size_t kRbRptr = 3;  // and 4: bytes
constexpr std::size_t kRbWptr = 5;  // and 6: bytes
constexpr std::size_t kRbRptrAddrHi = 8;
constexpr std::size_t kRbRptrAddrLo = 9;
constexpr std::size_t kDwords = 128;
}  // namespace sdma

// Of PQ_CONTROL: a ring of 2^(n+1) dwords. No ring is longer than what its read pointer can count.
constexpr std::uint64_t ring_bytes(std::uint32_t control) {
  return std::uint64_t{8} << std::min<std::uint32_t>(control & 0x3f, 30);
}

// Of doorbell registers and packets: byte offset in BAR 2.
constexpr std::uint32_t doorbell_bytes(std::uint32_t value) {
  return value & 0x0ffffffc;
}

constexpr std::uint64_t join(std::uint32_t low, std::uint32_t high) {
  return low | static_cast<std::uint64_t>(high) << 32;
}

// MQDs hold 32 bits of a compute queue's read pointer and all of its write pointer, which is at most a ring
// ahead.
constexpr std::uint64_t whole_read_pointer(std::uint32_t read, std::uint64_t write) {
  return write - static_cast<std::uint32_t>(static_cast<std::uint32_t>(write) - read);
}

}  // namespace sluice::card::mqd
