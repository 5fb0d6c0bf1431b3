// SPDX-License-Identifier: MIT
// Statistics of repeated measurements: medians and their uncertainty. Pure functions.
#pragma once

#include <span>
#include <vector>

namespace sluice::bench {

// A median and its 95 % interval.
struct Interval {
  double value = 0;
  double low = 0;
  double high = 0;
};

// REQUIRES for all: samples are not empty.
double median(std::vector<double> samples);

// The median with a bootstrap interval (percentile method, 10 000 resamples from a fixed seed: the same
// samples give the same interval). One sample is its own interval.
Interval median_interval(std::span<const double> samples);

// Of ours[i] / theirs[i]: pairs that ran one after the other, so that a drift of the machine cancels out.
// REQUIRES: as many of both.
Interval ratio_interval(std::span<const double> ours, std::span<const double> theirs);

}  // namespace sluice::bench
