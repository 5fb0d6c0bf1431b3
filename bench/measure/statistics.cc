// SPDX-License-Identifier: MIT
#include "measure/statistics.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <random>

namespace sluice::bench {
namespace {

constexpr std::size_t kResamples = 10000;
constexpr double kTail = 0.025;  // on either side of a 95 % interval

}  // namespace

double median(std::vector<double> samples) {
  assert(!samples.empty());
  std::sort(samples.begin(), samples.end());
  const std::size_t middle = samples.size() / 2;
  return samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
}

Interval median_interval(std::span<const double> samples) {
  std::mt19937_64 random(0x51u);
  std::uniform_int_distribution<std::size_t> pick(0, samples.size() - 1);
  std::vector<double> medians(kResamples);
  std::vector<double> resample(samples.size());
  for (double& each : medians) {
    for (double& value : resample) value = samples[pick(random)];
    each = median(resample);
  }
  std::sort(medians.begin(), medians.end());
  const auto tail = static_cast<std::size_t>(kTail * static_cast<double>(kResamples));
  return {median({samples.begin(), samples.end()}), medians[tail], medians[kResamples - 1 - tail]};
}

Interval ratio_interval(std::span<const double> ours, std::span<const double> theirs) {
  assert(ours.size() == theirs.size());
  std::vector<double> ratios(ours.size());
  for (std::size_t i = 0; i < ours.size(); ++i) ratios[i] = ours[i] / theirs[i];
  return median_interval(ratios);
}

}  // namespace sluice::bench
