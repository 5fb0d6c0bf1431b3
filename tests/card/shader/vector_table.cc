// SPDX-License-Identifier: MIT
// VOP1, VOP2 and VOP3: what one lane computes. The numbers are those of VOP3: VOP2's are 0x100 higher there,
// VOP1's 0x140.
#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>

#include "shader/lane_function.h"

namespace sluice::card::shader {

namespace {

using namespace vector;

constexpr I32 sign24(U32 value) {
  return static_cast<I32>(value << 8) >> 8;
}

// The smaller and the larger float: a number beats a NaN, and -0 is less than 0.
template <class T>
T smaller(T a, T b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  return a < b || (a == b && std::signbit(a)) ? a : b;
}
template <class T>
T larger(T a, T b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  return a > b || (a == b && !std::signbit(a)) ? a : b;
}
template <class T>
T middle(T a, T b, T c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}
float middle_float(float a, float b, float c) {
  if (std::isnan(a) || std::isnan(b) || std::isnan(c)) return smaller(smaller(a, b), c);
  return middle(a, b, c);
}
template <class F>
Half half(F function, Half a, Half b) {
  return to_half(function(to_float(a), to_float(b)));
}

// To an integer, towards zero: what does not fit becomes the nearest that does, and a NaN becomes 0.
template <class To, class From>
To to_integer(From value) {
  if (std::isnan(value)) return 0;
  if (value <= static_cast<From>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
  if (value >= static_cast<From>(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
  return static_cast<To>(value);
}

template <class T>
T fraction(T value) {
  return std::min(value - std::floor(value), std::nextafter(T{1}, T{0}));
}
// v_sin_f32 and v_cos_f32 take turns, not radians.
float sine(float turns) {
  return static_cast<float>(std::sin(2 * 3.14159265358979323846 * (turns - std::floor(double{turns}))));
}
float cosine(float turns) {
  return static_cast<float>(std::cos(2 * 3.14159265358979323846 * (turns - std::floor(double{turns}))));
}
template <class T>
T mantissa(T value) {
  int exponent = 0;
  return std::isfinite(value) ? std::frexp(value, &exponent) : value;
}
template <class T>
I32 exponent_of(T value) {
  int exponent = 0;
  if (std::isfinite(value)) (void)std::frexp(value, &exponent);
  return exponent;
}

U32 saturate(Lane& lane, U64 sum, bool negative) {
  if (!lane.clamp) return static_cast<U32>(sum);
  if (negative) return 0;
  return sum >> 32 != 0 ? ~U32{0} : static_cast<U32>(sum);
}
U32 saturate(Lane& lane, I64 sum) {
  if (!lane.clamp) return static_cast<U32>(sum);
  return static_cast<U32>(
      std::clamp<I64>(sum, std::numeric_limits<I32>::min(), std::numeric_limits<I32>::max()));
}
U32 add_carry(Lane& lane, U32 a, U32 b, bool carry) {
  const U64 sum = U64{a} + b + (carry ? 1 : 0);
  lane.carry_out = sum >> 32 != 0;
  return saturate(lane, sum, false);
}
U32 subtract_borrow(Lane& lane, U32 a, U32 b, bool borrow) {
  const U64 taken = U64{b} + (borrow ? 1 : 0);
  lane.carry_out = taken > a;
  return saturate(lane, a - taken, lane.carry_out);
}

U32 field(U32 value, U32 offset, U32 width) {
  return value >> (offset & 31) & ((U32{1} << (width & 31)) - 1);
}
I32 signed_field(U32 value, U32 offset, U32 width) {
  offset &= 31;
  width &= 31;
  if (width == 0) return 0;
  if (offset + width >= 32) return static_cast<I32>(value) >> offset;
  return static_cast<I32>(value << (32 - offset - width)) >> (32 - width);
}

// v_perm_b32: each byte of the selector picks one of eight, or a sign, or a constant.
U32 permute_bytes(U32 high, U32 low, U32 selector) {
  const U64 bytes = U64{high} << 32 | low;
  U32 result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const U32 pick = selector >> 8 * i & 0xff;
    U32 byte = 0;
    if (pick < 8) {
      byte = bytes >> 8 * pick & 0xff;
    } else if (pick < 12) {  // the signs of bytes 1, 3, 5, 7
      byte = (bytes >> (16 * (pick - 8) + 15) & 1) != 0 ? 0xff : 0;
    } else if (pick > 12) {
      byte = 0xff;
    }
    result |= byte << 8 * i;
  }
  return result;
}
U32 sum_of_differences(U32 a, U32 b, unsigned width) {
  U32 sum = 0;
  for (unsigned at = 0; at < 32; at += width) {
    const U32 mask = (U32{1} << width) - 1;
    const U32 x = a >> at & mask, y = b >> at & mask;
    sum += x > y ? x - y : y - x;
  }
  return sum;
}

// ---- division: the steps that compilers make of it ----

// v_div_scale: a source out of range for the steps between is scaled by a power of two, and VCC remembers.
template <class T>
T scale_for_division(T value, T denominator, T numerator, int most, int by, int least, bool* scaled) {
  *scaled = false;
  if (numerator == 0 || denominator == 0) return std::numeric_limits<T>::quiet_NaN();
  const bool is_denominator = bits_of(value) == bits_of(denominator);
  const bool is_numerator = bits_of(value) == bits_of(numerator);
  const bool inverse_small = std::fpclassify(T{1} / denominator) == FP_SUBNORMAL;
  const bool quotient_small = std::fpclassify(numerator / denominator) == FP_SUBNORMAL;
  const int bias = std::numeric_limits<T>::max_exponent - 2;
  if (exponent_of(numerator) - exponent_of(denominator) >= most) {
    *scaled = true;
    return is_denominator ? std::ldexp(value, by) : value;
  }
  if (std::fpclassify(denominator) == FP_SUBNORMAL) return std::ldexp(value, by);
  if (inverse_small && quotient_small) {
    *scaled = true;
    return is_denominator ? std::ldexp(value, by) : value;
  }
  if (inverse_small) return std::ldexp(value, -by);
  if (quotient_small) {
    *scaled = true;
    return is_numerator ? std::ldexp(value, by) : value;
  }
  return exponent_of(numerator) + bias <= least ? std::ldexp(value, by) : value;
}

// v_div_fmas: the last step, with the scale taken back.
template <class T>
T last_step(T a, T b, T c, bool scaled, int by) {
  const T result = std::fma(a, b, c);
  if (!scaled) return result;
  return std::ldexp(result, exponent_of(c) > 1 ? by : -by);
}

// v_div_fixup: the special values that the steps between get wrong.
template <class T>
T fix_quotient(T quotient, T denominator, T numerator) {
  const bool negative = std::signbit(denominator) != std::signbit(numerator);
  if (std::isnan(numerator)) return numerator;
  if (std::isnan(denominator)) return denominator;
  if ((numerator == 0 && denominator == 0) || (std::isinf(numerator) && std::isinf(denominator))) {
    return -std::numeric_limits<T>::quiet_NaN();
  }
  T magnitude = std::fabs(quotient);
  if (denominator == 0 || std::isinf(numerator)) magnitude = std::numeric_limits<T>::infinity();
  if (std::isinf(denominator) || numerator == 0) magnitude = 0;
  return negative ? -magnitude : magnitude;
}

U32 pack(U32 low, U32 high) {
  return (low & 0xffff) | high << 16;
}
Half toward_zero(float value) {
  const int before = std::fegetround();
  (void)std::fesetround(FE_TOWARDZERO);
  const Half result = to_half(value);
  (void)std::fesetround(before);
  return result;
}
U32 below(unsigned lane) {  // lanes of this half of the wave before `lane`
  return lane >= 32 ? ~U32{0} : (U32{1} << lane) - 1;
}

constexpr VectorLine kLines[] = {
    // ---- VOP2 ----
    line(0x100, "v_cndmask_b32", [](U32 a, U32 b, Lane& l) { return l.carry_in ? b : a; }, kCarryIn),
    line(0x101, "v_add_f32", [](float a, float b) { return a + b; }),
    line(0x102, "v_sub_f32", [](float a, float b) { return a - b; }),
    line(0x103, "v_subrev_f32", [](float a, float b) { return b - a; }),
    line(0x104, "v_fmac_f64", [](double a, double b, Lane& l) { return std::fma(a, b, as_double(l.old)); }, kReadsOld),
    line(0x105, "v_mul_f32", [](float a, float b) { return a * b; }),
    line(0x106, "v_mul_i32_i24", [](U32 a, U32 b) { return static_cast<U32>(I64{sign24(a)} * sign24(b)); }),
    line(0x107, "v_mul_hi_i32_i24", [](U32 a, U32 b) { return static_cast<U32>(I64{sign24(a)} * sign24(b) >> 32); }),
    line(0x108, "v_mul_u32_u24", [](U32 a, U32 b) { return (a & 0xffffff) * (b & 0xffffff); }),
    line(0x109, "v_mul_hi_u32_u24",
         [](U32 a, U32 b) { return static_cast<U32>(U64{a & 0xffffff} * (b & 0xffffff) >> 32); }),
    line(0x10a, "v_min_f32", [](float a, float b) { return smaller(a, b); }),
    line(0x10b, "v_max_f32", [](float a, float b) { return larger(a, b); }),
    line(0x10c, "v_min_i32", [](I32 a, I32 b) { return std::min(a, b); }),
    line(0x10d, "v_max_i32", [](I32 a, I32 b) { return std::max(a, b); }),
    line(0x10e, "v_min_u32", [](U32 a, U32 b) { return std::min(a, b); }),
    line(0x10f, "v_max_u32", [](U32 a, U32 b) { return std::max(a, b); }),
    line(0x110, "v_lshrrev_b32", [](U32 a, U32 b) { return b >> (a & 31); }),
    line(0x111, "v_ashrrev_i32", [](U32 a, I32 b) { return b >> (a & 31); }),
    line(0x112, "v_lshlrev_b32", [](U32 a, U32 b) { return b << (a & 31); }),
    line(0x113, "v_and_b32", [](U32 a, U32 b) { return a & b; }),
    line(0x114, "v_or_b32", [](U32 a, U32 b) { return a | b; }),
    line(0x115, "v_xor_b32", [](U32 a, U32 b) { return a ^ b; }),
    line(0x116, "v_mac_f32", [](float a, float b, Lane& l) { return a * b + as_float(l.old); }, kReadsOld),
    line(0x117, "v_madmk_f32", [](float a, float k, float b) { return a * k + b; }, kLiteralSecond),
    line(0x118, "v_madak_f32", [](float a, float b, float k) { return a * b + k; }, kLiteralThird),
    line(0x119, "v_add_co_u32", [](U32 a, U32 b, Lane& l) { return add_carry(l, a, b, false); }, kCarryOut),
    line(0x11a, "v_sub_co_u32", [](U32 a, U32 b, Lane& l) { return subtract_borrow(l, a, b, false); }, kCarryOut),
    line(0x11b, "v_subrev_co_u32", [](U32 a, U32 b, Lane& l) { return subtract_borrow(l, b, a, false); }, kCarryOut),
    line(0x11c, "v_addc_co_u32", [](U32 a, U32 b, Lane& l) { return add_carry(l, a, b, l.carry_in); },
         kCarryOut | kCarryIn),
    line(0x11d, "v_subb_co_u32", [](U32 a, U32 b, Lane& l) { return subtract_borrow(l, a, b, l.carry_in); },
         kCarryOut | kCarryIn),
    line(0x11e, "v_subbrev_co_u32", [](U32 a, U32 b, Lane& l) { return subtract_borrow(l, b, a, l.carry_in); },
         kCarryOut | kCarryIn),
    line(0x11f, "v_add_f16", [](Half a, Half b) { return half([](float x, float y) { return x + y; }, a, b); }),
    line(0x120, "v_sub_f16", [](Half a, Half b) { return half([](float x, float y) { return x - y; }, a, b); }),
    line(0x121, "v_subrev_f16", [](Half a, Half b) { return half([](float x, float y) { return y - x; }, a, b); }),
    line(0x122, "v_mul_f16", [](Half a, Half b) { return half([](float x, float y) { return x * y; }, a, b); }),
    line(0x126, "v_add_u16", [](U16 a, U16 b) { return static_cast<U16>(a + b); }),
    line(0x127, "v_sub_u16", [](U16 a, U16 b) { return static_cast<U16>(a - b); }),
    line(0x128, "v_subrev_u16", [](U16 a, U16 b) { return static_cast<U16>(b - a); }),
    line(0x129, "v_mul_lo_u16", [](U16 a, U16 b) { return static_cast<U16>(U32{a} * b); }),
    line(0x12a, "v_lshlrev_b16", [](U16 a, U16 b) { return static_cast<U16>(b << (a & 15)); }),
    line(0x12b, "v_lshrrev_b16", [](U16 a, U16 b) { return static_cast<U16>(b >> (a & 15)); }),
    line(0x12c, "v_ashrrev_i16", [](U16 a, I16 b) { return static_cast<I16>(b >> (a & 15)); }),
    line(0x12d, "v_max_f16", [](Half a, Half b) { return half(larger<float>, a, b); }),
    line(0x12e, "v_min_f16", [](Half a, Half b) { return half(smaller<float>, a, b); }),
    line(0x12f, "v_max_u16", [](U16 a, U16 b) { return std::max(a, b); }),
    line(0x130, "v_max_i16", [](I16 a, I16 b) { return std::max(a, b); }),
    line(0x131, "v_min_u16", [](U16 a, U16 b) { return std::min(a, b); }),
    line(0x132, "v_min_i16", [](I16 a, I16 b) { return std::min(a, b); }),
    line(0x133, "v_ldexp_f16", [](Half a, I16 b) { return to_half(std::ldexp(to_float(a), b)); }),
    line(0x134, "v_add_u32", [](U32 a, U32 b, Lane& l) { return saturate(l, U64{a} + b, false); }),
    line(0x135, "v_sub_u32", [](U32 a, U32 b, Lane& l) { return saturate(l, U64{a} - b, b > a); }),
    line(0x136, "v_subrev_u32", [](U32 a, U32 b, Lane& l) { return saturate(l, U64{b} - a, a > b); }),
    line(0x13b, "v_fmac_f32", [](float a, float b, Lane& l) { return std::fma(a, b, as_float(l.old)); }, kReadsOld),
    line(0x13d, "v_xnor_b32", [](U32 a, U32 b) { return ~(a ^ b); }),

    // ---- VOP1 ----
    line(0x141, "v_mov_b32", [](U32 a) { return a; }),
    line(0x142, "v_readfirstlane_b32", [](U32 a) { return a; }, kScalarResult),
    line(0x143, "v_cvt_i32_f64", [](double a) { return to_integer<I32>(a); }),
    line(0x144, "v_cvt_f64_i32", [](I32 a) { return static_cast<double>(a); }),
    line(0x145, "v_cvt_f32_i32", [](I32 a) { return static_cast<float>(a); }),
    line(0x146, "v_cvt_f32_u32", [](U32 a) { return static_cast<float>(a); }),
    line(0x147, "v_cvt_u32_f32", [](float a) { return to_integer<U32>(a); }),
    line(0x148, "v_cvt_i32_f32", [](float a) { return to_integer<I32>(a); }),
    line(0x14a, "v_cvt_f16_f32", [](float a) { return to_half(a); }),
    line(0x14b, "v_cvt_f32_f16", [](Half a) { return to_float(a); }),
    line(0x14c, "v_cvt_rpi_i32_f32", [](float a) { return to_integer<I32>(std::floor(a + 0.5F)); }),
    line(0x14d, "v_cvt_flr_i32_f32", [](float a) { return to_integer<I32>(std::floor(a)); }),
    line(0x14f, "v_cvt_f32_f64", [](double a) { return static_cast<float>(a); }),
    line(0x150, "v_cvt_f64_f32", [](float a) { return static_cast<double>(a); }),
    line(0x151, "v_cvt_f32_ubyte0", [](U32 a) { return static_cast<float>(a & 0xff); }),
    line(0x152, "v_cvt_f32_ubyte1", [](U32 a) { return static_cast<float>(a >> 8 & 0xff); }),
    line(0x153, "v_cvt_f32_ubyte2", [](U32 a) { return static_cast<float>(a >> 16 & 0xff); }),
    line(0x154, "v_cvt_f32_ubyte3", [](U32 a) { return static_cast<float>(a >> 24); }),
    line(0x155, "v_cvt_u32_f64", [](double a) { return to_integer<U32>(a); }),
    line(0x156, "v_cvt_f64_u32", [](U32 a) { return static_cast<double>(a); }),
    line(0x157, "v_trunc_f64", [](double a) { return std::trunc(a); }),
    line(0x158, "v_ceil_f64", [](double a) { return std::ceil(a); }),
    line(0x159, "v_rndne_f64", [](double a) { return std::nearbyint(a); }),
    line(0x15a, "v_floor_f64", [](double a) { return std::floor(a); }),
    line(0x15b, "v_fract_f32", [](float a) { return fraction(a); }),
    line(0x15c, "v_trunc_f32", [](float a) { return std::trunc(a); }),
    line(0x15d, "v_ceil_f32", [](float a) { return std::ceil(a); }),
    line(0x15e, "v_rndne_f32", [](float a) { return std::nearbyint(a); }),
    line(0x15f, "v_floor_f32", [](float a) { return std::floor(a); }),
    line(0x160, "v_exp_f32", [](float a) { return std::exp2(a); }),
    line(0x161, "v_log_f32", [](float a) { return std::log2(a); }),
    line(0x162, "v_rcp_f32", [](float a) { return 1.0F / a; }),
    line(0x163, "v_rcp_iflag_f32", [](float a) { return 1.0F / a; }),
    line(0x164, "v_rsq_f32", [](float a) { return 1.0F / std::sqrt(a); }),
    line(0x165, "v_rcp_f64", [](double a) { return 1.0 / a; }),
    line(0x166, "v_rsq_f64", [](double a) { return 1.0 / std::sqrt(a); }),
    line(0x167, "v_sqrt_f32", [](float a) { return std::sqrt(a); }),
    line(0x168, "v_sqrt_f64", [](double a) { return std::sqrt(a); }),
    line(0x169, "v_sin_f32", [](float a) { return sine(a); }),
    line(0x16a, "v_cos_f32", [](float a) { return cosine(a); }),
    line(0x16b, "v_not_b32", [](U32 a) { return ~a; }),
    line(0x16c, "v_bfrev_b32",
         [](U32 a) {
           U32 reversed = 0;
           for (unsigned i = 0; i < 32; ++i) reversed |= (a >> i & 1) << (31 - i);
           return reversed;
         }),
    line(0x16d, "v_ffbh_u32", [](U32 a) { return a == 0 ? ~U32{0} : static_cast<U32>(std::countl_zero(a)); }),
    line(0x16e, "v_ffbl_b32", [](U32 a) { return a == 0 ? ~U32{0} : static_cast<U32>(std::countr_zero(a)); }),
    line(0x16f, "v_ffbh_i32",
         [](I32 a) {
           const auto same = static_cast<U32>(a < 0 ? ~a : a);
           return same == 0 ? ~U32{0} : static_cast<U32>(std::countl_zero(same));
         }),
    line(0x170, "v_frexp_exp_i32_f64", [](double a) { return exponent_of(a); }),
    line(0x171, "v_frexp_mant_f64", [](double a) { return mantissa(a); }),
    line(0x172, "v_fract_f64", [](double a) { return fraction(a); }),
    line(0x173, "v_frexp_exp_i32_f32", [](float a) { return exponent_of(a); }),
    line(0x174, "v_frexp_mant_f32", [](float a) { return mantissa(a); }),
    line(0x178, "v_mov_b64", [](U64 a) { return a; }),  // of gfx942
    line(0x179, "v_cvt_f16_u16", [](U16 a) { return to_half(a); }),
    line(0x17a, "v_cvt_f16_i16", [](I16 a) { return to_half(a); }),
    line(0x17b, "v_cvt_u16_f16", [](Half a) { return to_integer<U16>(to_float(a)); }),
    line(0x17c, "v_cvt_i16_f16", [](Half a) { return to_integer<I16>(to_float(a)); }),
    line(0x17d, "v_rcp_f16", [](Half a) { return to_half(1.0F / to_float(a)); }),
    line(0x17e, "v_sqrt_f16", [](Half a) { return to_half(std::sqrt(to_float(a))); }),
    line(0x17f, "v_rsq_f16", [](Half a) { return to_half(1.0F / std::sqrt(to_float(a))); }),
    line(0x180, "v_log_f16", [](Half a) { return to_half(std::log2(to_float(a))); }),
    line(0x181, "v_exp_f16", [](Half a) { return to_half(std::exp2(to_float(a))); }),
    line(0x184, "v_floor_f16", [](Half a) { return to_half(std::floor(to_float(a))); }),
    line(0x185, "v_ceil_f16", [](Half a) { return to_half(std::ceil(to_float(a))); }),
    line(0x186, "v_trunc_f16", [](Half a) { return to_half(std::trunc(to_float(a))); }),
    line(0x187, "v_rndne_f16", [](Half a) { return to_half(std::nearbyint(to_float(a))); }),
    line(0x191, "v_swap_b32", [](U32 a) { return a; }, kSwap),
    line(0x192, "v_accvgpr_mov_b32", [](U32 a) { return a; }, kAccumulators),

    // ---- VOP3 alone ----
    line(0x1c1, "v_mad_f32", [](float a, float b, float c) { return a * b + c; }),
    line(0x1c2, "v_mad_i32_i24",
         [](U32 a, U32 b, U32 c) { return static_cast<U32>(I64{sign24(a)} * sign24(b)) + c; }),
    line(0x1c3, "v_mad_u32_u24", [](U32 a, U32 b, U32 c) { return (a & 0xffffff) * (b & 0xffffff) + c; }),
    line(0x1c8, "v_bfe_u32", [](U32 a, U32 b, U32 c) { return field(a, b, c); }),
    line(0x1c9, "v_bfe_i32", [](U32 a, U32 b, U32 c) { return signed_field(a, b, c); }),
    line(0x1ca, "v_bfi_b32", [](U32 a, U32 b, U32 c) { return (a & b) | (~a & c); }),
    line(0x1cb, "v_fma_f32", [](float a, float b, float c) { return std::fma(a, b, c); }),
    line(0x1cc, "v_fma_f64", [](double a, double b, double c) { return std::fma(a, b, c); }),
    line(0x1ce, "v_alignbit_b32",
         [](U32 a, U32 b, U32 c) { return static_cast<U32>((U64{a} << 32 | b) >> (c & 31)); }),
    line(0x1cf, "v_alignbyte_b32",
         [](U32 a, U32 b, U32 c) { return static_cast<U32>((U64{a} << 32 | b) >> 8 * (c & 3)); }),
    line(0x1d0, "v_min3_f32", [](float a, float b, float c) { return smaller(smaller(a, b), c); }),
    line(0x1d1, "v_min3_i32", [](I32 a, I32 b, I32 c) { return std::min({a, b, c}); }),
    line(0x1d2, "v_min3_u32", [](U32 a, U32 b, U32 c) { return std::min({a, b, c}); }),
    line(0x1d3, "v_max3_f32", [](float a, float b, float c) { return larger(larger(a, b), c); }),
    line(0x1d4, "v_max3_i32", [](I32 a, I32 b, I32 c) { return std::max({a, b, c}); }),
    line(0x1d5, "v_max3_u32", [](U32 a, U32 b, U32 c) { return std::max({a, b, c}); }),
    line(0x1d6, "v_med3_f32", [](float a, float b, float c) { return middle_float(a, b, c); }),
    line(0x1d7, "v_med3_i32", [](I32 a, I32 b, I32 c) { return middle(a, b, c); }),
    line(0x1d8, "v_med3_u32", [](U32 a, U32 b, U32 c) { return middle(a, b, c); }),
    line(0x1d9, "v_sad_u8", [](U32 a, U32 b, U32 c) { return sum_of_differences(a, b, 8) + c; }),
    line(0x1db, "v_sad_u16", [](U32 a, U32 b, U32 c) { return sum_of_differences(a, b, 16) + c; }),
    line(0x1dc, "v_sad_u32", [](U32 a, U32 b, U32 c) { return (a > b ? a - b : b - a) + c; }),
    line(0x1de, "v_div_fixup_f32", [](float a, float b, float c) { return fix_quotient(a, b, c); }),
    line(0x1df, "v_div_fixup_f64", [](double a, double b, double c) { return fix_quotient(a, b, c); }),
    line(0x1e0, "v_div_scale_f32",
         [](float a, float b, float c, Lane& l) { return scale_for_division(a, b, c, 96, 64, 23, &l.carry_out); },
         kCarryOut),
    line(0x1e1, "v_div_scale_f64",
         [](double a, double b, double c, Lane& l) { return scale_for_division(a, b, c, 768, 128, 53, &l.carry_out); },
         kCarryOut),
    line(0x1e2, "v_div_fmas_f32",
         [](float a, float b, float c, Lane& l) { return last_step(a, b, c, l.carry_in, 64); }, kCarryIn),
    line(0x1e3, "v_div_fmas_f64",
         [](double a, double b, double c, Lane& l) { return last_step(a, b, c, l.carry_in, 128); }, kCarryIn),
    line(0x1e8, "v_mad_u64_u32",
         [](U32 a, U32 b, U64 c, Lane& l) {
           const U64 sum = U64{a} * b + c;
           l.carry_out = sum < c;
           return sum;
         },
         kCarryOut),
    line(0x1e9, "v_mad_i64_i32",
         [](I32 a, I32 b, I64 c, Lane& l) {
           I64 sum = 0;
           l.carry_out = __builtin_add_overflow(I64{a} * b, c, &sum);
           return sum;
         },
         kCarryOut),
    line(0x1ed, "v_perm_b32", [](U32 a, U32 b, U32 c) { return permute_bytes(a, b, c); }),
    line(0x1f1, "v_mad_u32_u16", [](U32 a, U32 b, U32 c) { return (a & 0xffff) * (b & 0xffff) + c; }),
    line(0x1f2, "v_mad_i32_i16",
         [](I32 a, I32 b, U32 c) { return static_cast<U32>(I32{static_cast<I16>(a)} * static_cast<I16>(b)) + c; }),
    line(0x1f3, "v_xad_u32", [](U32 a, U32 b, U32 c) { return (a ^ b) + c; }),
    line(0x1f5, "v_min3_i16", [](I16 a, I16 b, I16 c) { return std::min({a, b, c}); }),
    line(0x1f6, "v_min3_u16", [](U16 a, U16 b, U16 c) { return std::min({a, b, c}); }),
    line(0x1f8, "v_max3_i16", [](I16 a, I16 b, I16 c) { return std::max({a, b, c}); }),
    line(0x1f9, "v_max3_u16", [](U16 a, U16 b, U16 c) { return std::max({a, b, c}); }),
    line(0x1fd, "v_lshl_add_u32", [](U32 a, U32 b, U32 c) { return (a << (b & 31)) + c; }),
    line(0x1fe, "v_add_lshl_u32", [](U32 a, U32 b, U32 c) { return (a + b) << (c & 31); }),
    line(0x1ff, "v_add3_u32", [](U32 a, U32 b, U32 c) { return a + b + c; }),
    line(0x200, "v_lshl_or_b32", [](U32 a, U32 b, U32 c) { return a << (b & 31) | c; }),
    line(0x201, "v_and_or_b32", [](U32 a, U32 b, U32 c) { return (a & b) | c; }),
    line(0x202, "v_or3_b32", [](U32 a, U32 b, U32 c) { return a | b | c; }),
    line(0x204, "v_mad_u16", [](U16 a, U16 b, U16 c) { return static_cast<U16>(U32{a} * b + c); }),
    line(0x205, "v_mad_i16",
         [](U16 a, U16 b, U16 c) { return static_cast<U16>(U32{a} * b + c); }),  // the same low bits
    line(0x206, "v_fma_f16",
         [](Half a, Half b, Half c) { return to_half(std::fma(to_float(a), to_float(b), to_float(c))); }),
    line(0x280, "v_add_f64", [](double a, double b) { return a + b; }),
    line(0x281, "v_mul_f64", [](double a, double b) { return a * b; }),
    line(0x282, "v_min_f64", [](double a, double b) { return smaller(a, b); }),
    line(0x283, "v_max_f64", [](double a, double b) { return larger(a, b); }),
    line(0x284, "v_ldexp_f64", [](double a, I32 b) { return std::ldexp(a, std::clamp(b, -5000, 5000)); }),
    line(0x285, "v_mul_lo_u32", [](U32 a, U32 b) { return a * b; }),
    line(0x286, "v_mul_hi_u32", [](U32 a, U32 b) { return static_cast<U32>(U64{a} * b >> 32); }),
    line(0x287, "v_mul_hi_i32", [](I32 a, I32 b) { return static_cast<I32>(I64{a} * b >> 32); }),
    line(0x288, "v_ldexp_f32", [](float a, I32 b) { return std::ldexp(a, std::clamp(b, -5000, 5000)); }),
    line(0x289, "v_readlane_b32", [](U32 a, U32) { return a; }, kScalarResult),
    line(0x28a, "v_writelane_b32", [](U32 a, U32) { return a; }),
    line(0x28b, "v_bcnt_u32_b32", [](U32 a, U32 b) { return static_cast<U32>(std::popcount(a)) + b; }),
    line(0x28c, "v_mbcnt_lo_u32_b32",
         [](U32 a, U32 b, Lane& l) { return static_cast<U32>(std::popcount(a & below(l.lane))) + b; }),
    line(0x28d, "v_mbcnt_hi_u32_b32",
         [](U32 a, U32 b, Lane& l) {
           return (l.lane > 32 ? static_cast<U32>(std::popcount(a & below(l.lane - 32))) : 0) + b;
         }),
    line(0x208, "v_lshl_add_u64", [](U64 a, U32 b, U64 c) { return (a << (b & 7)) + c; }),  // of gfx942
    line(0x28f, "v_lshlrev_b64", [](U32 a, U64 b) { return b << (a & 63); }),
    line(0x290, "v_lshrrev_b64", [](U32 a, U64 b) { return b >> (a & 63); }),
    line(0x291, "v_ashrrev_i64", [](U32 a, I64 b) { return b >> (a & 63); }),
    line(0x293, "v_bfm_b32", [](U32 a, U32 b) { return ((U32{1} << (a & 31)) - 1) << (b & 31); }),
    line(0x296, "v_cvt_pkrtz_f16_f32", [](float a, float b) { return pack(toward_zero(a).bits, toward_zero(b).bits); }),
    line(0x297, "v_cvt_pk_u16_u32", [](U32 a, U32 b) { return pack(std::min(a, 0xffffU), std::min(b, 0xffffU)); }),
    line(0x298, "v_cvt_pk_i16_i32",
         [](I32 a, I32 b) {
           return pack(static_cast<U32>(std::clamp(a, -0x8000, 0x7fff)), static_cast<U32>(std::clamp(b, -0x8000, 0x7fff)));
         }),
    line(0x29c, "v_add_i32", [](I32 a, I32 b, Lane& l) { return saturate(l, I64{a} + b); }),
    line(0x29d, "v_sub_i32", [](I32 a, I32 b, Lane& l) { return saturate(l, I64{a} - b); }),
    line(0x29e, "v_add_i16", [](U16 a, U16 b) { return static_cast<U16>(a + b); }),
    line(0x29f, "v_sub_i16", [](U16 a, U16 b) { return static_cast<U16>(a - b); }),
    line(0x2a0, "v_pack_b32_f16", [](Half a, Half b) { return pack(a.bits, b.bits); }),
};

}  // namespace

const Table<VectorLine, 1024>& vector_table() {
  static const Table<VectorLine, 1024> table(kLines);
  return table;
}

bool is_mad_with_literal(U32 op) {
  return op == 0x117 || op == 0x118 || op == 0x124 || op == 0x125;  // _f32, _f16
}

}  // namespace sluice::card::shader
