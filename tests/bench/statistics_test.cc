// SPDX-License-Identifier: MIT
// Medians, their intervals, and what a transfer's figures are.
#include "measure/statistics.h"

#include <gtest/gtest.h>

#include <vector>

#include "measure/sample.h"

namespace sluice::bench {
namespace {

TEST(Median, IsTheMiddleOfAnOddNumberWhateverTheirOrder) {
  EXPECT_EQ(median({9, 1, 5}), 5);
}

TEST(Median, IsTheMeanOfTheMiddleTwoOfAnEvenNumber) {
  EXPECT_EQ(median({4, 1, 100, 2}), 3);
}

TEST(Median, OfOneSampleIsIt) {
  EXPECT_EQ(median({7}), 7);
}

TEST(Interval, OfOneSampleIsIt) {
  const std::vector<double> samples = {3.5};
  const Interval interval = median_interval(samples);
  EXPECT_EQ(interval.value, 3.5);
  EXPECT_EQ(interval.low, 3.5);
  EXPECT_EQ(interval.high, 3.5);
}

TEST(Interval, OfEqualSamplesHasNoWidth) {
  const std::vector<double> samples(9, 0.97);
  const Interval interval = median_interval(samples);
  EXPECT_EQ(interval.low, 0.97);
  EXPECT_EQ(interval.high, 0.97);
}

// Of 1 ... 9 the bootstrap distribution of the median is known: a resample's median is 1 with a probability
// of 0.1 %, at most 2 with 3.0 %. The 2.5th percentile is 2 then, and by symmetry the 97.5th is 8.
TEST(Interval, OfNineSamplesIsTheSecondToTheEighth) {
  const std::vector<double> samples = {5, 1, 9, 2, 8, 3, 7, 4, 6};
  const Interval interval = median_interval(samples);
  EXPECT_EQ(interval.value, 5);
  EXPECT_EQ(interval.low, 2);
  EXPECT_EQ(interval.high, 8);
}

TEST(Interval, IsTheSameForTheSameSamples) {
  const std::vector<double> samples = {0.93, 0.99, 0.97, 0.91, 1.02, 0.95, 0.98};
  const Interval first = median_interval(samples), second = median_interval(samples);
  EXPECT_EQ(first.low, second.low);
  EXPECT_EQ(first.high, second.high);
}

// A machine that becomes slower and slower: the rates differ by far, the pairs do not.
TEST(Interval, OfRatiosDoesNotSeeADriftThatBothShare) {
  std::vector<double> ours, theirs;
  for (int i = 0; i < 9; ++i) {
    theirs.push_back(5.0 - 0.4 * i);
    ours.push_back(theirs.back() * 0.96);
  }
  const Interval interval = ratio_interval(ours, theirs);
  EXPECT_NEAR(interval.value, 0.96, 1e-12);
  EXPECT_NEAR(interval.high - interval.low, 0, 1e-12);
}

TEST(Sample, RatesAreOfTenToTheNinthBytes) {
  const Sample sample{3'000'000'000, 2, 0.6, 0.1};
  EXPECT_DOUBLE_EQ(sample.gbps(), 1.5);
  EXPECT_DOUBLE_EQ(sample.cpu_seconds_per_gb(), 0.2);
}

TEST(Sample, OfNothingHasNoRate) {
  EXPECT_EQ(Sample{}.gbps(), 0);
  EXPECT_EQ(Sample{}.cpu_seconds_per_gb(), 0);
}

}  // namespace
}  // namespace sluice::bench
