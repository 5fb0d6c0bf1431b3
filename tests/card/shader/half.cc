// SPDX-License-Identifier: MIT
#include "shader/half.h"

#include <cmath>

namespace sluice::card::shader {

float to_float(Half half) {
  const U32 sign = U32{half.bits} >> 15;
  const U32 exponent = half.bits >> 10 & 0x1f;
  const U32 fraction = half.bits & 0x3ff;
  if (exponent == 0x1f) return as_float(sign << 31 | 0x7f800000 | fraction << 13);
  const float magnitude =
      exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                    : std::ldexp(static_cast<float>(fraction | 0x400), static_cast<int>(exponent) - 25);
  return sign != 0 ? -magnitude : magnitude;
}

Half to_half(float value) {
  const U32 bits = bits_of(value);
  const U16 sign = static_cast<U16>(bits >> 16 & 0x8000);
  if (std::isnan(value)) return {static_cast<U16>(sign | 0x7e00 | (bits >> 13 & 0x1ff))};
  const float magnitude = std::fabs(value);
  if (magnitude == 0) return {sign};
  if (magnitude >= 65520.0F) return {static_cast<U16>(sign | 0x7c00)};
  // Below the smallest normal number a unit is 2^-24; above it, 2^-10 of the power of two.
  int exponent = 0;
  (void)std::frexp(magnitude, &exponent);
  const int unit = exponent < -13 ? -24 : exponent - 11;
  const auto count = static_cast<U32>(std::nearbyint(std::ldexp(magnitude, -unit)));
  if (exponent < -13) return {static_cast<U16>(sign | count)};
  // A count of 2048 carries into the exponent, as it must.
  return {static_cast<U16>(sign | ((static_cast<U32>(unit + 25) << 10) + (count - 0x400)))};
}

}  // namespace sluice::card::shader
