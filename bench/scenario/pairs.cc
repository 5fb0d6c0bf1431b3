// SPDX-License-Identifier: MIT
#include "scenario/pairs.h"

#include <algorithm>
#include <functional>

#include "measure/process.h"
#include "scenario/shape.h"

namespace sluice::bench {
namespace {

template <class Value>
std::vector<double> values(const std::vector<Sample>& samples, Value value) {
  std::vector<double> result;
  result.reserve(samples.size());
  for (const Sample& sample : samples) result.push_back(std::invoke(value, sample));
  return result;
}

double dma_cpu(const Sample& sample) {
  return sample.dma_cpu_seconds / (static_cast<double>(sample.bytes) / 1e9);
}

}  // namespace

std::vector<double> Pairs::our_gbps() const {
  return values(ours, &Sample::gbps);
}

std::vector<double> Pairs::raw_gbps() const {
  return values(raw, &Sample::gbps);
}

std::vector<Figure> Pairs::figures() const {
  std::vector<Figure> all = {ratio("ratio", our_gbps(), raw_gbps()), figure("ours", "GB/s", our_gbps()),
                             figure("raw", "GB/s", raw_gbps()),
                             figure("cpu", "s/GB", values(ours, &Sample::cpu_seconds_per_gb)),
                             figure("raw cpu", "s/GB", values(raw, &Sample::cpu_seconds_per_gb))};
  if (std::any_of(ours.begin(), ours.end(), [](const Sample& sample) { return sample.dma_cpu_seconds > 0; }))
    all.push_back(figure("dma cpu", "s/GB", values(ours, dma_cpu)));
  return all;
}

Result<Pairs> run_pairs(unsigned count, const std::function<void()>& prepare, const Run& ours,
                        const Run& raw) {
  Pairs pairs;
  for (unsigned pair = 0; pair < count; ++pair) {
    for (const bool first : {true, false}) {
      const bool ours_now = first == (pair % 2 == 0);
      prepare();
      SLUICE_TRY_ASSIGN(const Sample sample, ours_now ? ours() : raw());
      (ours_now ? pairs.ours : pairs.raw).push_back(sample);
    }
  }
  return pairs;
}

std::vector<Figure> cost_figures(const Pairs& pairs, std::uint64_t bytes_with, std::uint64_t bytes_without) {
  std::vector<double> cpu, without_cpu;
  for (const Sample& sample : pairs.ours) cpu.push_back(sample.cpu_seconds_per_gb());
  for (const Sample& sample : pairs.raw) without_cpu.push_back(sample.cpu_seconds_per_gb());
  const double more = static_cast<double>(bytes_with) - static_cast<double>(bytes_without);
  return {ratio("cpu ratio", cpu, without_cpu), ratio("time ratio", pairs.raw_gbps(), pairs.our_gbps()),
          figure("bytes more", "MiB", {more / static_cast<double>(kMiB)}), figure("cpu", "s/GB", cpu),
          figure("cpu without", "s/GB", without_cpu)};
}

Result<Case> on_off_case(const BenchOptions& options, const std::string& name, const std::string& note,
                         const std::function<Result<Sample>(bool on)>& run) {
  options.tell(name);
  SLUICE_TRY_ASSIGN(const Pairs pairs,
                    run_pairs(
                        options.by_scale(1u, 5u, 15u), [] { touch_free_memory(kTouchBytes); },
                        [&] { return run(true); }, [&] { return run(false); }));
  const std::vector<double> on = pairs.our_gbps(), off = pairs.raw_gbps();
  return Case{name, note, {ratio("ratio", on, off), figure("on", "GB/s", on), figure("off", "GB/s", off)}};
}

}  // namespace sluice::bench
