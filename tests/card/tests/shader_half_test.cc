// SPDX-License-Identifier: MIT
#include "shader/half.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice::card::tests {
namespace {

using shader::Half;
using shader::to_float;
using shader::to_half;
using shader::U16;
using shader::U32;

TEST(ShaderHalf, EveryOneComesBackFromAFloat) {
  for (U32 bits = 0; bits < 0x10000; ++bits) {
    const float value = to_float(Half{static_cast<U16>(bits)});
    if (std::isnan(value)) continue;
    EXPECT_EQ(to_half(value).bits, bits) << value;
  }
}

TEST(ShaderHalf, WhatIsBetweenTwoGoesToTheNearestAndTiesToTheEven) {
  for (U32 bits = 0; bits < 0x7bff; ++bits) {
    const float low = to_float(Half{static_cast<U16>(bits)}),
                high = to_float(Half{static_cast<U16>(bits + 1)});
    const float middle = (low + high) / 2;
    EXPECT_EQ(to_half(middle).bits, bits + bits % 2) << middle;
    EXPECT_EQ(to_half(std::nextafterf(middle, low)).bits, bits) << middle;
    EXPECT_EQ(to_half(std::nextafterf(middle, high)).bits, bits + 1) << middle;
  }
}

}  // namespace
}  // namespace sluice::card::tests
