// SPDX-License-Identifier: MIT
#include "shader/operands.h"

#include <cfenv>
#include <cmath>

#include "shader/half.h"
#include "shader/lane_function.h"

namespace sluice::card::shader {

namespace {

bool is_float(Kind kind) {
  return kind == Kind::kF16 || kind == Kind::kF32 || kind == Kind::kF64;
}
bool is_short(Kind kind) {
  return kind == Kind::kF16 || kind == Kind::kB16;
}
U64 sign_of(Kind kind) {
  return kind == Kind::kF16 ? U64{1} << 15 : kind == Kind::kF32 ? U64{1} << 31 : U64{1} << 63;
}

// Sources of SDWA: a VGPR, or an SGPR if its bit is set.
U32 sdwa_code(U32 code, bool is_scalar) {
  return is_scalar ? code & 0xff : operand::kVector + (code & 0xff);
}

void take_sdwa(VectorOperands& to, U32 word, bool compares) {
  to.sdwa = word;
  to.code[0] = sdwa_code(word & 0xff, (word >> 23 & 1) != 0);
  to.code[1] = sdwa_code(to.code[1], (word >> 31 & 1) != 0);
  to.negate = (word >> 20 & 1) | (word >> 28 & 1) << 1;
  to.absolute = (word >> 21 & 1) | (word >> 29 & 1) << 1;
  if (compares) {
    if ((word >> 15 & 1) != 0) to.scalar_destination = word >> 8 & 0x7f;
    return;
  }
  to.clamp = (word >> 13 & 1) != 0;
  to.multiply = word >> 14 & 3;
}

void take_dpp(VectorOperands& to, U32 word) {
  to.dpp = word;
  to.code[0] = operand::kVector + (word & 0xff);
  to.negate = (word >> 20 & 1) | (word >> 22 & 1) << 1;
  to.absolute = (word >> 21 & 1) | (word >> 23 & 1) << 1;
}

VectorOperands short_form(const Instruction& in) {
  VectorOperands to;
  to.code[0] = in.bits(0, 9);
  to.code[1] = operand::kVector + in.bits(9, 8);
  to.destination = in.bits(17, 8);
  to.literal = in.second;
  if (to.code[0] == operand::kSdwa) take_sdwa(to, in.second, in.encoding == Encoding::kVopc);
  if (to.code[0] == operand::kDpp) take_dpp(to, in.second);
  if (in.encoding != Encoding::kVop2) return to;
  const VectorLine* line = vector_table().find(in.op);
  if (line == nullptr) return to;
  if ((line->flags & vector::kLiteralThird) != 0) to.code[2] = operand::kLiteral;
  if ((line->flags & vector::kLiteralSecond) != 0) {
    to.code[2] = to.code[1];
    to.code[1] = operand::kLiteral;
  }
  return to;
}

// The byte or half that SDWA picks: 0 to 3 a byte, 4 and 5 a half, 6 all.
U32 select(U32 value, U32 which, bool extend) {
  if (which < 4) {
    value = value >> 8 * which & 0xff;
    return extend ? static_cast<U32>(static_cast<std::int8_t>(value)) : value;
  }
  if (which < 6) {
    value = value >> 16 * (which - 4) & 0xffff;
    return extend ? static_cast<U32>(static_cast<I16>(value)) : value;
  }
  return value;
}

// The lane that DPP reads for `lane`, or nothing where it is beyond the row or the wave.
std::optional<unsigned> dpp_lane(U32 control, unsigned lane) {
  const unsigned row = lane & ~15U, at = lane & 15, by = control & 15;
  if (control < 0x100) return (lane & ~3U) | (control >> 2 * (lane & 3) & 3);
  if (control > 0x100 && control < 0x110) return at + by < 16 ? std::optional(lane + by) : std::nullopt;
  if (control > 0x110 && control < 0x120) return at >= by ? std::optional(lane - by) : std::nullopt;
  if (control > 0x120 && control < 0x130) return row | ((at - by) & 15);
  if (control >= 0x150 && control < 0x160) return row | by;
  switch (control) {
    case 0x130:
      return lane + 1 < kLanes ? std::optional(lane + 1) : std::nullopt;
    case 0x134:
      return (lane + 1) % kLanes;
    case 0x138:
      return lane > 0 ? std::optional(lane - 1) : std::nullopt;
    case 0x13c:
      return (lane + kLanes - 1) % kLanes;
    case 0x140:
      return row | (15 - at);
    case 0x141:
      return (lane & ~7U) | (7 - (lane & 7));
    case 0x142:
      return row >= 16 ? std::optional(row - 1) : std::nullopt;
    case 0x143:
      return lane >= 32 ? std::optional(31U) : std::nullopt;
    default:
      return std::nullopt;
  }
}

// M0 moves the VGPRs that it names: bit 12 the first source, and so on; bit 15 the destination.
U32 relative(const Wave& wave, U32 code, unsigned which) {
  if ((wave.mode & mode::kGprIndex) == 0 || (wave.m0() >> (12 + which) & 1) == 0) return code;
  return code >= operand::kVector ? code + (wave.m0() & 0xff) : code;
}

// Denormals and rounding have two bits each in MODE for f32, and two for the others.
U32 mode_bits(U32 mode, Kind kind, unsigned at) {
  return mode >> (at + (kind == Kind::kF32 ? 0 : 2)) & 3;
}

}  // namespace

VectorOperands operands_of(const Instruction& in) {
  if (in.encoding != Encoding::kVop3) return short_form(in);
  VectorOperands to;
  to.destination = in.bits(0, 8);
  to.code = {in.bits2(0, 9), in.bits2(9, 9), in.bits2(18, 9)};
  to.multiply = in.bits2(27, 2);
  to.negate = in.bits2(29, 3);
  to.clamp = in.has(15);
  const VectorLine* line = in.op < 0x100 ? nullptr : vector_table().find(in.op);
  if (in.op < 0x100) {
    to.scalar_destination = in.bits(0, 7);
    to.absolute = in.bits(8, 3);
  } else if (line != nullptr && (line->flags & vector::kCarryOut) != 0) {
    to.scalar_destination = in.bits(8, 7);
  } else {
    to.absolute = in.bits(8, 3);
    to.half_select = in.bits(11, 4);
  }
  // A carry of two sources is the third; a v_div_fmas has three and takes VCC.
  if (line != nullptr && (line->flags & vector::kCarryIn) != 0 && line->s[2] == Kind::kNone)
    to.carry_in = to.code[2];
  return to;
}

std::optional<std::array<U64, 3>> sources_of(const Machine& machine, const Wave& wave,
                                             const VectorOperands& from, const std::array<Kind, 3>& kinds,
                                             unsigned lane) {
  unsigned first_lane = lane;
  bool zero = false;
  if (from.dpp) {
    const U32 word = *from.dpp;
    if ((word >> (28 + lane / 16) & 1) == 0 || (word >> (24 + lane / 4 % 4) & 1) == 0) return std::nullopt;
    const auto there = dpp_lane(word >> 8 & 0x1ff, lane);
    if (there && (wave.exec() >> *there & 1) != 0) {
      first_lane = *there;
    } else if ((word >> 19 & 1) != 0) {
      zero = true;
    } else {
      return std::nullopt;
    }
  }
  std::array<U64, 3> values{};
  for (unsigned i = 0; i < 3 && kinds[i] != Kind::kNone; ++i) {
    U64 value = i == 0 && zero ? 0
                               : machine.source(wave, relative(wave, from.code[i], i), kinds[i], from.literal,
                                                i == 0 ? first_lane : lane);
    if (from.sdwa && i < 2) {
      value = select(static_cast<U32>(value), *from.sdwa >> (i == 0 ? 16 : 24) & 7,
                     (*from.sdwa >> (i == 0 ? 19 : 27) & 1) != 0);
    }
    if (is_short(kinds[i]) && (from.half_select >> i & 1) != 0) value >>= 16;
    value = modify(value, kinds[i], (from.absolute >> i & 1) != 0, (from.negate >> i & 1) != 0);
    values[i] = flush(value, kinds[i], wave.mode, false);
  }
  return values;
}

U64 modify(U64 bits, Kind kind, bool absolute, bool negate) {
  if (!is_float(kind)) return bits;
  if (absolute) bits &= ~sign_of(kind);
  return negate ? bits ^ sign_of(kind) : bits;
}

U64 flush(U64 bits, Kind kind, U32 mode, bool out) {
  if (!is_float(kind)) return bits;
  const U32 kept = mode_bits(mode, kind, 4);
  if ((kept >> (out ? 1 : 0) & 1) != 0) return bits;
  const U64 exponent = kind == Kind::kF16   ? U64{0x7c00}
                       : kind == Kind::kF32 ? U64{0x7f800000}
                                            : U64{0x7ff} << 52;
  return (bits & exponent) == 0 ? bits & sign_of(kind) : bits;
}

namespace {

template <class T>
T scaled_and_clamped(T value, U32 multiply, bool clamp) {
  static constexpr T kFactors[] = {1, 2, 4, T{0.5}};
  value *= kFactors[multiply];
  if (!clamp) return value;
  return std::isnan(value) || value < 0 ? 0 : value > 1 ? 1 : value;
}

}  // namespace

U64 finish(U64 bits, Kind kind, const VectorOperands& how, U32 mode) {
  if (!is_float(kind)) return bits;
  bits = flush(bits, kind, mode, true);
  if (how.multiply == 0 && !how.clamp) return bits;
  switch (kind) {
    case Kind::kF64:
      return to_bits(scaled_and_clamped(as_double(bits), how.multiply, how.clamp));
    case Kind::kF32:
      return to_bits(scaled_and_clamped(as_float(bits), how.multiply, how.clamp));
    default:
      return to_half(scaled_and_clamped(to_float(Half{static_cast<U16>(bits)}), how.multiply, how.clamp))
          .bits;
  }
}

U32 place(U64 bits, Kind kind, const VectorOperands& how, U32 old) {
  const auto value = static_cast<U32>(bits);
  if (is_short(kind) && (how.half_select & 8) != 0) return (old & 0xffff) | value << 16;
  if (!how.sdwa || (*how.sdwa >> 8 & 7) >= 6) return value;
  const U32 which = *how.sdwa >> 8 & 7;
  const U32 shift = which < 4 ? 8 * which : 16 * (which - 4);
  const U32 mask = (which < 4 ? U32{0xff} : U32{0xffff}) << shift;
  const U32 part = value << shift & mask;
  switch (*how.sdwa >> 11 & 3) {
    case 0:  // the rest is zero
      return part;
    case 1:  // the rest is the sign
      return (part >> (shift + (which < 4 ? 7 : 15)) & 1) != 0 ? part | ~(mask | (mask - 1)) : part;
    default:
      return part | (old & ~mask);
  }
}

Rounding::Rounding(U32 mode, Kind kind) {
  static constexpr int kDirections[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  const U32 direction = mode_bits(mode, kind, 0);
  if (!is_float(kind) || direction == 0) return;
  before_ = std::fegetround();
  changed_ = std::fesetround(kDirections[direction]) == 0;
}

Rounding::~Rounding() {
  if (changed_) (void)std::fesetround(before_);
}

}  // namespace sluice::card::shader
