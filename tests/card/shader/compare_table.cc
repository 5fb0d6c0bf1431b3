// SPDX-License-Identifier: MIT
// VOPC. Numbers are regular: a block of 16 for each type has the conditions in one order, and v_cmpx is 16
// higher.
#include <cmath>

#include "shader/lane_function.h"

namespace sluice::card::shader {

namespace {

// Halves compare as floats do.
float half_of(const Lane& lane, std::size_t at) {
  return to_float(Half{static_cast<U16>(lane.s[at])});
}

template <class T>
struct Plain {
  static T get(const Lane& lane, std::size_t at) { return from_bits<T>(lane.s[at]); }
};
struct Halves {
  static float get(const Lane& lane, std::size_t at) { return half_of(lane, at); }
};

template <class G>
bool lt(const Lane& l) {
  return G::get(l, 0) < G::get(l, 1);
}
template <class G>
bool eq(const Lane& l) {
  return G::get(l, 0) == G::get(l, 1);
}
template <class G>
bool gt(const Lane& l) {
  return G::get(l, 0) > G::get(l, 1);
}
template <class G>
bool le(const Lane& l) {
  return lt<G>(l) || eq<G>(l);
}
template <class G>
bool ge(const Lane& l) {
  return gt<G>(l) || eq<G>(l);
}
template <class G>
bool lg(const Lane& l) {
  return lt<G>(l) || gt<G>(l);
}
template <class G>
bool ordered(const Lane& l) {
  return lg<G>(l) || eq<G>(l);
}
template <bool (*kTest)(const Lane&)>
bool no(const Lane& l) {
  return !kTest(l);
}
bool never(const Lane& /*lane*/) {
  return false;
}
bool always(const Lane& /*lane*/) {
  return true;
}

// v_cmp_class: which of ten kinds of number the first operand is, as bits of the second.
template <class T>
bool in_class(T value, bool quiet, U64 mask) {
  unsigned bit = 0;
  const bool negative = std::signbit(value);
  switch (std::fpclassify(value)) {
    case FP_NAN:
      bit = quiet ? 1 : 0;
      break;
    case FP_INFINITE:
      bit = negative ? 2 : 9;
      break;
    case FP_NORMAL:
      bit = negative ? 3 : 8;
      break;
    case FP_SUBNORMAL:
      bit = negative ? 4 : 7;
      break;
    default:
      bit = negative ? 5 : 6;
      break;
  }
  return (mask >> bit & 1) != 0;
}
bool class32(const Lane& l) {
  return in_class(as_float(l.s[0]), (l.s[0] >> 22 & 1) != 0, l.s[1]);
}
bool class64(const Lane& l) {
  return in_class(as_double(l.s[0]), (l.s[0] >> 51 & 1) != 0, l.s[1]);
}

#define SLUICE_FLOAT_LINES(first, type, kind, G)                                                           \
  {first + 0, "f_" type, kind, kind, never}, {first + 1, "lt_" type, kind, kind, lt<G>},                   \
      {first + 2, "eq_" type, kind, kind, eq<G>}, {first + 3, "le_" type, kind, kind, le<G>},              \
      {first + 4, "gt_" type, kind, kind, gt<G>}, {first + 5, "lg_" type, kind, kind, lg<G>},              \
      {first + 6, "ge_" type, kind, kind, ge<G>}, {first + 7, "o_" type, kind, kind, ordered<G>},          \
      {first + 8, "u_" type, kind, kind, no<ordered<G>>}, {first + 9, "nge_" type, kind, kind, no<ge<G>>}, \
      {first + 10, "nlg_" type, kind, kind, no<lg<G>>}, {first + 11, "ngt_" type, kind, kind, no<gt<G>>},  \
      {first + 12, "nle_" type, kind, kind, no<le<G>>}, {first + 13, "neq_" type, kind, kind, no<eq<G>>},  \
      {first + 14, "nlt_" type, kind, kind, no<lt<G>>}, {                                                  \
    first + 15, "tru_" type, kind, kind, always                                                            \
  }
#define SLUICE_INTEGER_LINES(first, type, kind, G)                                                \
  {first + 0, "f_" type, kind, kind, never}, {first + 1, "lt_" type, kind, kind, lt<G>},          \
      {first + 2, "eq_" type, kind, kind, eq<G>}, {first + 3, "le_" type, kind, kind, le<G>},     \
      {first + 4, "gt_" type, kind, kind, gt<G>}, {first + 5, "ne_" type, kind, kind, no<eq<G>>}, \
      {first + 6, "ge_" type, kind, kind, ge<G>}, {                                               \
    first + 7, "t_" type, kind, kind, always                                                      \
  }

constexpr CompareLine kLines[] = {
    {0x10, "class_f32", Kind::kF32, Kind::kB32, class32},
    {0x12, "class_f64", Kind::kF64, Kind::kB32, class64},
    SLUICE_FLOAT_LINES(0x20, "f16", Kind::kF16, Halves),
    SLUICE_FLOAT_LINES(0x40, "f32", Kind::kF32, Plain<float>),
    SLUICE_FLOAT_LINES(0x60, "f64", Kind::kF64, Plain<double>),
    SLUICE_INTEGER_LINES(0xa0, "i16", Kind::kB16, Plain<I16>),
    SLUICE_INTEGER_LINES(0xa8, "u16", Kind::kB16, Plain<U16>),
    SLUICE_INTEGER_LINES(0xc0, "i32", Kind::kB32, Plain<I32>),
    SLUICE_INTEGER_LINES(0xc8, "u32", Kind::kB32, Plain<U32>),
    SLUICE_INTEGER_LINES(0xe0, "i64", Kind::kB64, Plain<I64>),
    SLUICE_INTEGER_LINES(0xe8, "u64", Kind::kB64, Plain<U64>),
};

}  // namespace

const CompareLine* find_compare(U32 op, bool* writes_exec) {
  static const Table<CompareLine, 256> table(kLines);
  const U32 higher = op < 0x20 ? 1 : 0x10;
  *writes_exec = (op & higher) != 0;
  return table.find(op & ~higher);
}

}  // namespace sluice::card::shader
