// SPDX-License-Identifier: MIT
// Which local GPU replaces which GPU of the image: pure functions over two topologies.
//
// The rules are upstream's, with its seven KFD_*_CHECK switches, so that each plugin restores what the other
// does:
//
//   number of GPUs   at least as many here (upstream: equal), and as many XGMI groups
//   one GPU for one  properties equal, or at least as good (table in pair_rules.cc); as many valid links or
//                    more; every link to a CPU node matched: not PCIe for XGMI, not one-way for two-way
//   KFD_NUMA_CHECK   CPU nodes of the image map one to one to CPU nodes here, the same way for all GPUs; a
//                    link keeps its type, unless it is the only one to its CPU node and becomes XGMI
//   XGMI groups      GPUs joined by two-way XGMI links (hive_id does not count) go to one group here, which
//                    may be larger; its other GPUs serve GPUs without a group
//
// Search: for each GPU of the image, the set of local GPUs that fit it individually. CPU nodes and groups are
// decided one after the other. Each decision narrows the sets, and a bipartite matching tells at once whether
// any assignment is left. So the 64 equal partitions of a machine in CPX mode take one pass, where trying
// single assignments would take ages. Contrived topologies can still need many decisions: the search gives up
// after kMatchStepsMax steps and reports it.
//
// Choice: rules say which GPUs may replace one, wishes which are better. Best is the GPU with the same gpu_id
// if it has room for the images' memory. Then come GPUs with room, the emptiest first; GPUs whose room is
// unknown; GPUs without room; last, those whose render node the task cannot open. The worst step that some
// GPU must take is minimal. Within it each GPU gets its best choice: first those that can stay in place, then
// in order of nodes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "kfd/topology.h"

namespace sluice::kfd {

// False disables a test. pair_rules.cc has the variables' names beside the members.
struct MatchRules {
  bool fw_version = true;       // KFD_FW_VER_CHECK
  bool sdma_fw_version = true;  // KFD_SDMA_FW_VER_CHECK
  bool caches_count = true;     // KFD_CACHES_COUNT_CHECK
  bool num_gws = true;          // KFD_NUM_GWS_CHECK
  bool vram_size = true;        // KFD_VRAM_SIZE_CHECK
  bool numa = true;             // KFD_NUMA_CHECK
  bool capability = true;       // KFD_CAPABILITY_CHECK

  bool operator==(const MatchRules&) const = default;
};

struct ParsedMatchRules {
  MatchRules rules;
  std::vector<std::string> warnings;  // one for each value other than 0, 1, YES, NO, which is ignored
};

// Reads the seven variables. `lookup` works as getenv: nullptr if a variable is not set. YES and NO in any
// case. Upstream's getenv_bool() accepts the same values, in all versions from 3.17 on.
ParsedMatchRules parse_match_rules(const std::function<const char*(const char*)>& lookup);

inline constexpr std::uint64_t kMatchStepsMax = 20'000'000;

// Facts about a local GPU beside its topology.
struct LocalGpu {
  std::optional<std::uint64_t> room;  // free bytes of VRAM; nothing: unknown
  bool reachable = true;              // its render node can be opened
};

// Which of the permitted assignments is wanted.
struct MatchWishes {
  std::vector<DeviceIds> fixed;   // these pairs or none: refused if the rules forbid one
  std::string fixed_by;           // the setting that demands them, for the refusal: "SLUICE_GPU_MAP"
  std::set<std::uint32_t> taken;  // local GPUs that other processes have
  std::map<std::uint32_t, std::uint64_t> need;  // bytes of VRAM by user gpu_id; 0 if missing
  std::map<std::uint32_t, LocalGpu> local;      // by actual gpu_id
};

struct Match {
  std::vector<DeviceIds> gpus;  // every GPU, in order of the image's nodes
  bool identity = false;
  std::uint64_t steps = 0;
};

struct Mismatch {
  std::string property;
  std::string source;  // values, as text
  std::string local;
  const char* variable = nullptr;  // environment variable that disables the test if 0; nullptr if none does

  bool operator==(const Mismatch&) const = default;
};

// Why one local GPU cannot replace one of the image. No mismatch: on its own it could.
struct PairReport {
  DeviceIds pair;
  std::vector<Mismatch> mismatches;
};

// One reason with all GPUs that it separates: each of `sources` from each of `locals`.
struct SharedReason {
  std::vector<std::uint32_t> sources;  // user gpu_ids
  std::vector<std::uint32_t> locals;   // actual gpu_ids
  std::vector<Mismatch> mismatches;
};

struct Refusal {
  std::string sentence;
  std::vector<PairReport>
      pairs;  // each GPU of the image with each local one; empty if the numbers alone decided
  std::uint64_t steps = 0;

  // `pairs` with each reason once, in order of first appearance.
  std::vector<SharedReason> reasons() const;
  // The sentence, then a line per reason.
  std::string text() const;
};

using MatchOutcome = std::variant<Match, Refusal>;

// `source`: the image's, user gpu_ids. `local`: this machine's.
MatchOutcome match_gpus(const Topology& source, const Topology& local, const MatchRules& rules,
                        const MatchWishes& wishes = {});

}  // namespace sluice::kfd
