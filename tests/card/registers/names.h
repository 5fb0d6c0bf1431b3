// SPDX-License-Identifier: MIT
// Byte offsets of registers that something of the card acts on. The table (table.cc) has these and all others
// that are known, each with its name.
//
// The driver adds offsets of its asic_reg headers to the bases of the chip. These are where the chips of this
// card agree: gc_9_0 and gc_9_4_3 (of the first XCC), osssys_4_2_0 and 4_4_2, nbio_7_4 and 7_9. What differs
// is in models/.
#pragma once

#include <cstdint>

namespace sluice::card::reg {

// NBIO
constexpr std::uint32_t kMmIndex = 0x0;      // bit 31: bits 0-30 of an address in VRAM, for ...
constexpr std::uint32_t kMmData = 0x4;       // ... this dword, ...
constexpr std::uint32_t kMmIndexHi = 0x18;   // ... and from bit 31 of the address on
constexpr std::uint32_t kPcieIndex2 = 0x38;  // byte address of a register, for ...
constexpr std::uint32_t kPcieData2 = 0x3c;   // ... this one
constexpr std::uint32_t kBiosScratch7 = 0x14c;
constexpr std::uint32_t kDoorbellAperEn = 0x3780;  // bit 0: BAR 2 is listened to
constexpr std::uint32_t kConfigMemsize = 0x378c;
constexpr std::uint32_t kIovFuncIdentifier = 0x3794;

// IH (OSSSYS)
constexpr std::uint32_t kIhVmidLut = 0x4280;    // + 4 * vmid: pasid, GC hub
constexpr std::uint32_t kIhVmidLutMm = 0x42c0;  // + 4 * vmid: pasid, MM hub
constexpr std::uint32_t kIhRbCntl = 0x4480;
constexpr std::uint32_t kIhRbBase = 0x4484;
constexpr std::uint32_t kIhRbBaseHi = 0x4488;
constexpr std::uint32_t kIhRbRptr = 0x448c;
constexpr std::uint32_t kIhRbWptr = 0x4490;
constexpr std::uint32_t kIhRbWptrAddrHi = 0x4494;
constexpr std::uint32_t kIhRbWptrAddrLo = 0x4498;
constexpr std::uint32_t kIhDoorbellRptr = 0x449c;

// GC
constexpr std::uint32_t kGrbmGfxCntl = 0x8088;
constexpr std::uint32_t kCpMecCntl = 0x8234;  // bit 30: the first micro engine is halted; bit 28: the second
constexpr std::uint32_t kCpMeIntCntl = 0xc214;  // of ME 1, pipe 0; + 4 * pipe; + 16 for ME 2
constexpr std::uint32_t kCpcIntCntl = 0xc2d0;   // the same of the pipe that GRBM_GFX_CNTL selects
constexpr std::uint32_t kCpcIntStatus = 0xc2d4;
constexpr std::uint32_t kScratchReg0 = 0x30100;
constexpr std::uint32_t kRlcSafeMode = 0x3b014;
constexpr std::uint32_t kRlcClockLsb = 0x3b090;
constexpr std::uint32_t kRlcClockMsb = 0x3b094;
constexpr std::uint32_t kRlcCaptureClock = 0x3b098;

// The registers of a hardware queue slot, one bank a slot: GRBM_GFX_CNTL selects. An MQD has the same dwords
// in the same order from its dword 128 on.
constexpr std::uint32_t kHqdFirst = 0xc914;  // CP_MQD_BASE_ADDR
constexpr std::uint32_t kHqdLast = 0xc9f0;   // CP_HQD_PQ_WPTR_HI
constexpr std::uint32_t kHqdActive = 0xc91c;
constexpr std::uint32_t kHqdDequeueRequest = 0xc974;

// A VM hub, from its VM_L2_PROTECTION_FAULT_CNTL on: all have the same registers at the same distances.
namespace hub {
constexpr std::uint32_t kFaultCntl = 0;
constexpr std::uint32_t kFaultStatus = 0x10;
constexpr std::uint32_t kFaultAddrLo = 0x14;
constexpr std::uint32_t kFaultAddrHi = 0x18;
constexpr std::uint32_t kContextCntl = 0xe4;      // + 4 * vmid
constexpr std::uint32_t kInvalidateSem = 0x128;   // + 4 * engine
constexpr std::uint32_t kInvalidateReq = 0x170;   // + 4 * engine
constexpr std::uint32_t kInvalidateAck = 0x1b8;   // + 4 * engine
constexpr std::uint32_t kContextBaseLo = 0x290;   // + 8 * vmid; HI is the next
constexpr std::uint32_t kContextStartLo = 0x310;  // + 8 * vmid
constexpr std::uint32_t kContextEndLo = 0x390;    // + 8 * vmid
}  // namespace hub
// And from its MC_VM_FB_OFFSET on (HubModel::apertures).
namespace aperture {
constexpr std::uint32_t kFbOffset = 0;
constexpr std::uint32_t kFbLocationBase = 0x54;
constexpr std::uint32_t kFbLocationTop = 0x58;
constexpr std::uint32_t kAgpTop = 0x5c;
constexpr std::uint32_t kAgpBot = 0x60;
constexpr std::uint32_t kAgpBase = 0x64;
}  // namespace aperture
constexpr unsigned kInvalidateEngines = 18;

// An SDMA engine, from its base on.
namespace sdma {
constexpr std::uint32_t kStatusReg = 0x94;
constexpr std::uint32_t kRbCntl = 0x200;
constexpr std::uint32_t kRbBase = 0x204;
constexpr std::uint32_t kRbBaseHi = 0x208;
constexpr std::uint32_t kRbRptr = 0x20c;
constexpr std::uint32_t kRbRptrHi = 0x210;
constexpr std::uint32_t kRbWptr = 0x214;
constexpr std::uint32_t kRbWptrHi = 0x218;
constexpr std::uint32_t kRbRptrAddrHi = 0x220;
constexpr std::uint32_t kRbRptrAddrLo = 0x224;
constexpr std::uint32_t kDoorbell = 0x248;        // bit 28: on
constexpr std::uint32_t kDoorbellOffset = 0x2ac;  // & 0x0ffffffc: byte offset in BAR 2
}  // namespace sdma

}  // namespace sluice::card::reg
