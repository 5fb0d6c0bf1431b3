// SPDX-License-Identifier: MIT
#include "cli/plan/flow_times.h"

#include <algorithm>
#include <cassert>
#include <limits>

namespace sluice::cli {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

// The rate of each flow that is `running`, in bytes per second: all grow equally until one of their servers
// is saturated.
std::vector<double> fair_rates(std::span<const double> rates, std::span<const Flow> flows,
                               const std::vector<bool>& running) {
  std::vector<double> fair(flows.size(), 0);
  std::vector<double> left(rates.begin(), rates.end());
  std::vector<bool> growing = running;
  while (std::find(growing.begin(), growing.end(), true) != growing.end()) {
    std::vector<double> load(rates.size(), 0);  // per additional byte of each growing flow
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (!growing[i]) continue;
      for (const Visit& visit : flows[i].route) load[visit.server] += visit.portion;
    }
    std::size_t full = 0;
    double least = kNone;
    for (std::size_t server = 0; server < rates.size(); ++server) {
      const double more = load[server] > 0 ? left[server] / load[server] : kNone;
      if (more < least) {
        least = more;
        full = server;
      }
    }
    assert(least < kNone);
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (!growing[i]) continue;
      fair[i] += least;
      for (const Visit& visit : flows[i].route) {
        left[visit.server] = std::max(0.0, left[visit.server] - least * visit.portion);
        if (visit.server == full && visit.portion > 0) growing[i] = false;
      }
    }
  }
  return fair;
}

// One chunk's way through all servers except the slowest, in seconds.
double fill_and_drain(std::span<const double> rates, const Flow& flow) {
  double way = 0;
  double slowest = 0;
  for (const Visit& visit : flow.route) {
    const double takes = std::min(flow.bytes, flow.chunk_bytes) * visit.portion / rates[visit.server];
    way += takes;
    slowest = std::max(slowest, takes);
  }
  return way - slowest;
}

}  // namespace

FlowTimes flow_times(std::span<const double> rates, std::span<const Flow> flows) {
  FlowTimes times;
  times.ends.resize(flows.size());
  times.busy.resize(rates.size());
  std::vector<double> left(flows.size());
  std::vector<bool> running(flows.size());
  for (std::size_t i = 0; i < flows.size(); ++i) {
    left[i] = flows[i].bytes;
    for (const Visit& visit : flows[i].route) {
      const double takes = flows[i].bytes * visit.portion / rates[visit.server];
      times.busy[visit.server] += takes;
      if (takes > 0) running[i] = true;
    }
  }
  for (double now = 0; std::find(running.begin(), running.end(), true) != running.end();) {
    const std::vector<double> fair = fair_rates(rates, flows, running);
    double next = kNone;
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (running[i]) next = std::min(next, left[i] / fair[i]);
    }
    now += next;
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (!running[i]) continue;
      // Flows that end at the same time differ by rounding.
      constexpr double kRounding = 1e-9;
      const double takes = left[i] / fair[i];
      left[i] -= next * fair[i];
      running[i] = takes > next * (1 + kRounding);
      if (!running[i]) times.ends[i] = now + fill_and_drain(rates, flows[i]);
    }
  }
  for (const double end : times.ends) times.seconds = std::max(times.seconds, end);
  return times;
}

}  // namespace sluice::cli
