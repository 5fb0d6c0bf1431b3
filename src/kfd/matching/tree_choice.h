// SPDX-License-Identifier: MIT
// The GPUs of one process of a restored tree, given those of its other processes. A restore's tasks choose by
// this (plugin/restore/gpus/gpu_match.h), and `sluice map` foretells the choice by it. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kfd/matching/gpu_map.h"
#include "kfd/matching/matching.h"
#include "kfd/topology.h"

namespace sluice::kfd {

// Adds a topology unless it is there already. The first is always one with the most GPUs.
void add_topology(std::vector<Topology>& topologies, const Topology& topology);

// The same for all processes of a tree.
struct TreeGpus {
  std::map<std::uint32_t, std::uint64_t> need;  // bytes of VRAM, by render minor in the images
  std::vector<MappedGpu> map;                   // the user's setting
  Topology widest;                              // of the process that saw the most GPUs; may be empty
};

// Of one process, as its image has it.
struct ProcessGpus {
  const Topology& topology;
  bool shares_memory = false;  // with another process: it must have the same GPUs
};

struct LocalGpus {
  const Topology& topology;
  std::map<std::uint32_t, LocalGpu> gpus;  // by gpu_id
};

struct TreeChoice {
  MatchOutcome outcome;
  // With those of its other processes. False: it could not have their GPUs, shares no memory, and was matched
  // by itself.
  bool follows = true;
  bool must_follow = false;       // refused, because it shares memory and could not have their GPUs
  std::vector<MappedGpu> agreed;  // what binds the processes that choose after it

  // What to say after the refusal's table: ENODEV. REQUIRES: a refusal.
  Error refused() const;
};

// `agreed`: what the processes that have chosen agree on. The first process decides: for the widest topology
// if its own GPUs are among these, so that GPUs that belong together are chosen together; then for itself.
TreeChoice choose_gpus(const ProcessGpus& process, const TreeGpus& tree, std::vector<MappedGpu> agreed,
                       const LocalGpus& local, const MatchRules& rules);

// A render file, as its image has it.
struct RenderFile {
  std::uint32_t gpu_id = 0;
  std::uint32_t minor = 0;  // 0: unknown; then the KFD process knows the GPU by `gpu_id`
  std::string words;        // for messages: "renderD128"
};

// Its GPU in the topology of its task's KFD process. nullptr: the process does not know that GPU, for which
// the image has the GPU's own id.
const Node* find_gpu_of(const RenderFile& file, const Topology& source);

// The local GPU of a file for which find_gpu_of() knows none: the tree's choice, or the GPU of the same
// gpu_id, a hash over the GPU's place and size. Is to be agreed on. Errors: ENODEV.
Result<MappedGpu> choose_without_kfd(const RenderFile& file, std::span<const MappedGpu> agreed,
                                     const Topology& local);

// Adds it to what was agreed, unless the GPU is there already. Returns whether it was added.
bool agree(std::vector<MappedGpu>& agreed, const MappedGpu& pair);

}  // namespace sluice::kfd
