// SPDX-License-Identifier: MIT
// The state of waves: 64 lanes that run one program of gfx90a, and the workgroup that they share LDS and
// barriers with.
//
// Facts: "AMD Instinct MI200 Instruction Set Architecture", chapters 3 (kernel state) and 4 (program flow);
// bits of hardware registers as Linux's cwsr_trap_handler_gfx9.asm names them. Value types; one thread.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace sluice::card::shader {

// The words of the ISA document.
using U8 = std::uint8_t;
using U16 = std::uint16_t;
using U32 = std::uint32_t;
using U64 = std::uint64_t;
using I16 = std::int16_t;
using I32 = std::int32_t;
using I64 = std::int64_t;

constexpr unsigned kLanes = 64;
constexpr unsigned kVectorRegisters = 256;  // of each of the two files: VGPRs and AccVGPRs

// Places in the scalar registers, which are also operand codes.
namespace sgpr {
constexpr U32 kFlatScratch = 102;  // and 103
constexpr U32 kXnackMask = 104;    // and 105
constexpr U32 kVcc = 106;          // and 107
constexpr U32 kTtmp = 108;         // to 123: of trap handlers
constexpr U32 kM0 = 124;
constexpr U32 kExec = 126;  // and 127
constexpr U32 kCount = 128;
}  // namespace sgpr

// Bits of STATUS. SCC, EXECZ and VCCZ are computed when it is read.
namespace status {
constexpr U32 kScc = 1 << 0;
constexpr U32 kPrivileged = 1 << 5;
constexpr U32 kTrapEnable = 1 << 6;
constexpr U32 kExecZero = 1 << 9;
constexpr U32 kVccZero = 1 << 10;
constexpr U32 kInGroup = 1 << 11;
constexpr U32 kHalt = 1 << 13;
constexpr U32 kValid = 1 << 16;
}  // namespace status

// Bits of TRAPSTS.
namespace trapsts {
constexpr U32 kSaveContext = 1 << 10;
constexpr U32 kIllegalInstruction = 1 << 11;
constexpr U32 kMemoryViolation = 1 << 8;
}  // namespace trapsts

// Bits of MODE.
namespace mode {
constexpr U32 kRoundSingle = 0x3;  // at bit 0: nearest even, up, down, to zero
constexpr U32 kDx10Clamp = 1 << 8;
constexpr U32 kIeee = 1 << 9;
constexpr U32 kGprIndex = 1 << 27;  // relative addressing of VGPRs by M0
constexpr U32 kVectorSkip = 1 << 28;
}  // namespace mode

using VectorRegister = std::array<U32, kLanes>;

struct Wave {
  std::array<U32, sgpr::kCount> scalar{};
  // The first 256 are VGPRs, the others AccVGPRs. On the hardware they are one file that `arch_vgprs`
  // divides.
  std::vector<VectorRegister> vector = std::vector<VectorRegister>(2 * std::size_t{kVectorRegisters});
  U64 pc = 0;
  bool scc = false;
  U32 status = status::kValid;
  U32 mode = 0;
  U32 trapsts = 0;
  U32 ib_sts = 0;

  // Allocated, which a context save needs: VGPRs of both kinds (a multiple of 8), of them plain ones (of 4),
  // and SGPRs (of 16).
  unsigned vgprs = 8;
  unsigned arch_vgprs = 8;
  unsigned sgprs = 112;

  bool first_of_group = false;
  bool ended = false;
  bool saved = false;  // ended by s_endpgm_saved
  bool at_barrier = false;
  U64 save_address = 0;  // the answer to MSG_SAVEWAVE, as EXEC has it
  unsigned scratch_slot = 0;

  U64 pair(U32 at) const { return scalar[at & 127] | U64{scalar[(at + 1) & 127]} << 32; }
  void pair(U32 at, U64 value) {
    scalar[at & 127] = static_cast<U32>(value);
    scalar[(at + 1) & 127] = static_cast<U32>(value >> 32);
  }
  U64 exec() const { return pair(sgpr::kExec); }
  void exec(U64 lanes) { pair(sgpr::kExec, lanes); }
  U64 vcc() const { return pair(sgpr::kVcc); }
  void vcc(U64 lanes) { pair(sgpr::kVcc, lanes); }
  U32 m0() const { return scalar[sgpr::kM0]; }
  bool privileged() const { return (status & status::kPrivileged) != 0; }
  // STATUS as s_getreg_b32 reads it.
  U32 whole_status() const {
    return (status & ~(status::kScc | status::kExecZero | status::kVccZero)) | (scc ? status::kScc : 0) |
           (exec() == 0 ? status::kExecZero : 0) | (vcc() == 0 ? status::kVccZero : 0);
  }
};

// The waves of one workgroup.
struct Group {
  std::vector<std::unique_ptr<Wave>> waves;
  std::vector<std::byte> lds;  // a multiple of 512 bytes
};

}  // namespace sluice::card::shader
