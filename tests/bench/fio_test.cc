// SPDX-License-Identifier: MIT
// What is said of our rates beside fio's.
#include "measure/fio.h"

#include <gtest/gtest.h>

namespace sluice::bench {
namespace {

TEST(Verdict, NeedsTheWholeInterval) {
  EXPECT_EQ(verdict_of({1.0, 0.951, 1.049}), "within 5 % of fio's");
  EXPECT_EQ(verdict_of({1.0, 0.949, 1.0}), "the median is within 5 % of fio's, its interval is not");
  EXPECT_EQ(verdict_of({1.0, 1.0, 1.051}), "the median is within 5 % of fio's, its interval is not");
}

TEST(Verdict, SaysTheSide) {
  EXPECT_EQ(verdict_of({1.19, 1.13, 1.22}), "not within 5 % of fio's: above");
  EXPECT_EQ(verdict_of({0.93, 0.90, 0.94}), "not within 5 % of fio's: below");
}

TEST(Verdict, SaysWhenAPartAgrees) {
  EXPECT_EQ(verdict_of({1.1, 1.04, 1.2}),
            "not within 5 % of fio's: above, except for a part of the interval");
  EXPECT_EQ(verdict_of({0.9, 0.8, 0.96}),
            "not within 5 % of fio's: below, except for a part of the interval");
  EXPECT_EQ(verdict_of({1.1, 0.8, 1.2}), "not within 5 % of fio's: above, except for a part of the interval");
}

}  // namespace
}  // namespace sluice::bench
