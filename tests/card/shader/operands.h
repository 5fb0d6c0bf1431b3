// SPDX-License-Identifier: MIT
// What stands around a vector instruction's function: where its operands are, and what happens to them on the
// way in and out. One form for VOP1, VOP2, VOPC and VOP3, with SDWA and DPP.
#pragma once

#include <optional>

#include "shader/machine.h"

namespace sluice::card::shader {

struct VectorOperands {
  std::array<U32, 3> code{};  // of sources
  U32 destination = 0;        // a VGPR; of readlane an SGPR
  U32 scalar_destination = sgpr::kVcc;
  U32 carry_in = sgpr::kVcc;  // a pair of SGPRs
  U32 literal = 0;

  U32 negate = 0, absolute = 0;  // bit i: of source i
  U32 half_select = 0;           // VOP3's op_sel: bit i source i, bit 3 the destination
  U32 multiply = 0;              // VOP3's omod: 1 by two, 2 by four, 3 by a half
  bool clamp = false;
  std::optional<U32> sdwa, dpp;  // their dword
};

// Of a VOP1, VOP2, VOPC or VOP3.
VectorOperands operands_of(const Instruction& in);

// The sources of one lane, with their modifiers. Nothing: DPP leaves this lane out.
std::optional<std::array<U64, 3>> sources_of(const Machine& machine, const Wave& wave,
                                             const VectorOperands& from, const std::array<Kind, 3>& kinds,
                                             unsigned lane);

// A float as the modifiers of a source make it.
U64 modify(U64 bits, Kind kind, bool absolute, bool negate);
// A denormal becomes 0 where MODE says so; `out`: of results, else of sources.
U64 flush(U64 bits, Kind kind, U32 mode, bool out);
// The result as omod, clamp and MODE make it.
U64 finish(U64 bits, Kind kind, const VectorOperands& how, U32 mode);
// Into the destination of that lane, by SDWA's and op_sel's choice of its part. `old`: what it had.
U32 place(U64 bits, Kind kind, const VectorOperands& how, U32 old);

// While this lives, the processor rounds as MODE says for operations of `kind`.
class Rounding {
 public:
  Rounding(U32 mode, Kind kind);
  Rounding(const Rounding&) = delete;
  Rounding& operator=(const Rounding&) = delete;
  ~Rounding();

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace sluice::card::shader
