// SPDX-License-Identifier: MIT
// How long flows take, by arithmetic: each takes its bytes through servers of known rates (a DMA engine, a
// link, cores, a disk), which flows share or have for themselves. All servers of a route work at once, so the
// slowest alone sets the pace; what comes on top is one chunk's way through the others (fill and drain).
//
// Flows that share a server get equal parts of it, and one that cannot use its part leaves it to the others
// (max-min fairness): what lanes do that keep step on a disk (pipeline/store/fair_share.h). `sluice-bench
// bubble` and `sluice-bench plan` hold this against the engine. Pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace sluice::forecast {

struct Visit {
  std::size_t server = 0;
  double portion = 1;  // of the flow's bytes, that come here: 0 to 1
};

struct Flow {
  double bytes = 0;
  double chunk_bytes = 0;  // what a server works on at a time
  std::vector<Visit> route;
};

struct FlowTimes {
  double seconds = 0;        // until the last flow has ended
  std::vector<double> ends;  // by flow, in seconds from the beginning, which is the same for all
  std::vector<double> busy;  // by server, in seconds: its bytes at its rate
};

// `rates`: by server, in bytes per second. A flow that comes to no server takes no time. REQUIRES: rates
// above 0; visits name servers that there are.
FlowTimes flow_times(std::span<const double> rates, std::span<const Flow> flows);

}  // namespace sluice::forecast
