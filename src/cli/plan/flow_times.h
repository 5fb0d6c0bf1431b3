// SPDX-License-Identifier: MIT
// How long flows take, by arithmetic. Each flow sends its bytes through servers of known rates (a DMA engine,
// a link, cores, a disk), shared or not. All servers of a route work at once, so only the slowest sets the
// pace. One chunk's way through the others (fill and drain) comes on top.
//
// Flows share a server equally, and a flow that cannot use its part leaves it to the others (max-min
// fairness). Lanes on one disk do the same (pipeline/store/fair_share.h). `sluice-bench bubble` and
// `sluice-bench plan` compare this with the engine. Pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace sluice::cli {

struct Visit {
  std::size_t server = 0;
  double portion = 1;  // of the flow's bytes that pass this server: 0 to 1
};

struct Flow {
  double bytes = 0;
  double chunk_bytes = 0;  // the unit in which servers work
  std::vector<Visit> route;
};

struct FlowTimes {
  double seconds = 0;        // until the last flow ends
  std::vector<double> ends;  // by flow, in seconds from the common start
  std::vector<double> busy;  // by server, in seconds: its bytes at its rate
};

// `rates`: by server, in bytes per second. A flow without servers takes no time. REQUIRES: rates above 0;
// visits name existing servers.
FlowTimes flow_times(std::span<const double> rates, std::span<const Flow> flows);

}  // namespace sluice::cli
