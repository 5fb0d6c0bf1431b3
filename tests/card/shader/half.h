// SPDX-License-Identifier: MIT
// 16-bit floats, and the bits of the others.
#pragma once

#include <bit>

#include "shader/wave.h"

namespace sluice::card::shader {

struct Half {
  U16 bits = 0;
};

// Exact.
float to_float(Half half);
// To the nearest, ties to even.
Half to_half(float value);

inline U32 bits_of(float value) {
  return std::bit_cast<U32>(value);
}
inline U64 bits_of(double value) {
  return std::bit_cast<U64>(value);
}
inline float as_float(U64 bits) {
  return std::bit_cast<float>(static_cast<U32>(bits));
}
inline double as_double(U64 bits) {
  return std::bit_cast<double>(bits);
}

}  // namespace sluice::card::shader
