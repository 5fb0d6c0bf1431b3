// SPDX-License-Identifier: MIT
// Whether one local GPU may replace one of the image, regardless of all others: properties, and links to CPU
// nodes. matching.h combines all of them. Functions and values without state; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kfd/matching/matching.h"
#include "kfd/topology.h"

namespace sluice::kfd {

// A set of GPUs of one side, by index.
using GpuSet = std::uint64_t;
static_assert(kGpusMax == 64);
constexpr GpuSet bit(std::size_t index) {
  return GpuSet{1} << index;
}

// A valid link from a GPU to a CPU node.
struct CpuLink {
  std::size_t cpu = 0;  // index into Side::cpus
  std::uint32_t type = 0;
  bool two_way = false;
};

// One topology, reduced to what matching uses. Borrows the topology.
struct Side {
  explicit Side(const Topology& topology);

  std::vector<const Node*> gpus;  // ascending node_id
  std::vector<const Node*> cpus;
  std::vector<std::vector<CpuLink>> cpu_links;  // [gpu]
  std::vector<std::size_t> valid_links;         // [gpu]
  std::vector<std::size_t> gpus_on_cpu;         // [cpu]: GPUs with a link to it
  std::vector<GpuSet> groups;                   // joined by two-way XGMI, in order of their first GPU
};

// Whether the local link may replace the image's: it must be able to do the same.
bool replaces(const CpuLink& source, const CpuLink& local);
// The same under KFD_NUMA_CHECK. `side`: the image's, whose link `source` is.
bool replaces_under_numa(const Side& side, const CpuLink& source, const CpuLink& local);

// All reasons against GPU `b` of `local` in place of GPU `a` of `source`; none: it may replace it.
std::vector<Mismatch> compare(const Side& source, std::size_t a, const Side& local, std::size_t b,
                              const MatchRules& rules);

}  // namespace sluice::kfd
