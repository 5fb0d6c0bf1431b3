// SPDX-License-Identifier: MIT
// One instruction of gfx90a, cut into the fields of its encoding.
//
// Facts: "AMD Instinct MI200 Instruction Set Architecture", chapter 13 (microcode formats). A test compares
// names and lengths with LLVM's disassembler.
#pragma once

#include <string>

#include "shader/wave.h"

namespace sluice::card::shader {

enum class Encoding : U8 {
  kSop1,
  kSop2,
  kSopk,
  kSopc,
  kSopp,
  kSmem,
  kVop1,
  kVop2,
  kVopc,
  kVop3,
  kVop3p,
  kDs,
  kFlat,
  kMubuf,
  kUnknown,
};

// Codes of operands that are more than a register or a number.
namespace operand {
constexpr U32 kZero = 128;
constexpr U32 kSharedBase = 235;
constexpr U32 kSharedLimit = 236;
constexpr U32 kPrivateBase = 237;
constexpr U32 kPrivateLimit = 238;
constexpr U32 kSdwa = 249;
constexpr U32 kDpp = 250;
constexpr U32 kVccZero = 251;
constexpr U32 kExecZero = 252;
constexpr U32 kScc = 253;
constexpr U32 kLiteral = 255;
constexpr U32 kVector = 256;  // VGPR 0
}  // namespace operand

struct Instruction {
  Encoding encoding = Encoding::kUnknown;
  U32 op = 0;      // within its encoding; a VOP1, VOP2 or VOPC has the number of its VOP3 form
  U32 dwords = 1;  // with its literal, SDWA or DPP word
  U32 first = 0;
  U32 second = 0;  // 0 where dwords is 1

  U32 bits(unsigned low, unsigned count) const { return first >> low & ((1U << count) - 1); }
  U32 bits2(unsigned low, unsigned count) const { return second >> low & ((1U << count) - 1); }
  bool has(unsigned bit) const { return (first >> bit & 1) != 0; }
  bool has2(unsigned bit) const { return (second >> bit & 1) != 0; }
};

// How many dwords the instruction that begins with `first` has.
U32 length_of(U32 first);
// `second` is ignored where length_of(first) is 1.
Instruction decode(U32 first, U32 second);

// As assemblers write it, or "" for an opcode that is not in the tables.
std::string name_of(const Instruction& instruction);
// For logs: "v_add_f32", or "VOP3 0x1c4" for one that is not in the tables.
std::string describe(const Instruction& instruction);

}  // namespace sluice::card::shader
