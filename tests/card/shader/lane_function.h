// SPDX-License-Identifier: MIT
// Makes a table's line out of a function of plain values: its parameter types say what the operands are.
#pragma once

#include <type_traits>
#include <utility>

#include "shader/half.h"
#include "shader/opcodes.h"

namespace sluice::card::shader {

template <class T>
constexpr Kind kind_of_type() {
  if constexpr (std::is_same_v<T, float>) return Kind::kF32;
  if constexpr (std::is_same_v<T, double>) return Kind::kF64;
  if constexpr (std::is_same_v<T, Half>) return Kind::kF16;
  if constexpr (sizeof(T) == 8) return Kind::kB64;
  if constexpr (sizeof(T) == 4) return Kind::kB32;
  return Kind::kB16;
}

template <class T>
T from_bits(U64 bits) {
  if constexpr (std::is_same_v<T, float>) return as_float(bits);
  if constexpr (std::is_same_v<T, double>) return as_double(bits);
  if constexpr (std::is_same_v<T, Half>) return Half{static_cast<U16>(bits)};
  if constexpr (std::is_integral_v<T>) return static_cast<T>(bits);
}

// Hardware's default NaN is positive, x86's is negative.
inline U64 to_bits(float value) {
  const U32 bits = bits_of(value);
  return bits == 0xffc00000 ? 0x7fc00000 : bits;
}
inline U64 to_bits(double value) {
  const U64 bits = bits_of(value);
  return bits == 0xfff8000000000000 ? 0x7ff8000000000000 : bits;
}
inline U64 to_bits(Half value) {
  return value.bits;
}
template <class T>
requires std::is_integral_v<T> U64 to_bits(T value) {
  return static_cast<std::make_unsigned_t<T>>(value);
}

// What a function without captures takes and gives. A last parameter Lane& is not an operand.
template <class F>
struct Signature : Signature<decltype(&F::operator())> {};
template <class F, class R, class... A>
struct Signature<R (F::*)(A...) const> {
  using Result = R;
  static constexpr bool kTakesLane = (std::is_same_v<A, Lane&> || ...);
  static constexpr std::size_t kOperands = sizeof...(A) - (kTakesLane ? 1 : 0);
  static constexpr std::array<Kind, 3> kinds() {
    std::array<Kind, 3> all{Kind::kNone, Kind::kNone, Kind::kNone};
    std::size_t at = 0;
    ((std::is_same_v<A, Lane&> ? void() : void(all[at++] = kind_of_type<std::remove_cvref_t<A>>())), ...);
    return all;
  }
  template <class Function>
  static R call(Lane& lane) {
    return call<Function>(lane, std::index_sequence_for<A...>());
  }

 private:
  template <class T>
  static decltype(auto) argument(Lane& lane, std::size_t at) {
    if constexpr (std::is_same_v<T, Lane&>) {
      return (lane);
    } else {
      return from_bits<std::remove_cvref_t<T>>(lane.s[at]);
    }
  }
  template <class Function, std::size_t... kAt>
  static R call(Lane& lane, std::index_sequence<kAt...>) {
    return Function{}(argument<A>(lane, kAt)...);
  }
};

template <class F>
void run_lane(Lane& lane) {
  lane.d = to_bits(Signature<F>::template call<F>(lane));
}

template <class F>
constexpr VectorLine line(U32 op, const char* name, F /*function*/, U8 flags = 0) {
  return {op,    name,        kind_of_type<typename Signature<F>::Result>(), Signature<F>::kinds(),
          flags, &run_lane<F>};
}

}  // namespace sluice::card::shader
