// SPDX-License-Identifier: MIT
// Which local GPU stands in for which GPU of the image: pure functions over two topologies.
//
// The rules are upstream's, with its seven KFD_*_CHECK switches, so that what one plugin restores the other
// does too:
//
//   number of GPUs   at least as many here (upstream: equal), and as many XGMI groups
//   one GPU for one  properties equal, or at least as good (table in matching.cc); as many valid links or
//                    more; every link to a CPU node matched: not PCIe for XGMI, not one-way for two-way
//   KFD_NUMA_CHECK   CPU nodes of the image map one to one to CPU nodes here, the same way for all GPUs; a
//                    link keeps its type, unless it is the only one to its CPU node and becomes XGMI
//   XGMI groups      GPUs joined by two-way XGMI links (hive_id does not count) go to one group here, which
//                    may be larger; what is left of it serves GPUs that have no group
//
// Search. Each GPU of the image keeps the set of local GPUs that fit it by themselves. CPU nodes and groups
// are decided one after the other; each decision narrows the sets, and a bipartite matching says at once
// whether any assignment is left. So the 64 equal partitions of a machine in CPX mode take one pass, where
// trying assignments one by one takes ages. Decisions can still be many in contrived topologies: the search
// gives up after kMatchStepsMax steps and says so.
//
// Choice. Rules say who may stand in, wishes who had better. A GPU is best off on the one with its own gpu_id
// while that has room for what the images bring, then on one that has room, the emptiest first, then on one
// of which nobody knows, then on one without room, and last where the task cannot open the render node. The
// worst of these steps that some GPU must take is as good as the rules allow; within it, each GPU takes what
// is best for it: those first that can stay where they were, then in order of nodes.
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

// False disables a test. The names of the variables are kept beside the members in matching.cc.
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
  std::vector<std::string> warnings;  // one for each value that is none of 0, 1, YES, NO: it changes nothing
};

// Reads the seven variables. `lookup` answers as getenv: nullptr for a variable that is not set. YES and NO
// in any case. Upstream's getenv_bool() takes these and no others, in all versions from 3.17 on.
ParsedMatchRules parse_match_rules(const std::function<const char*(const char*)>& lookup);

inline constexpr std::uint64_t kMatchStepsMax = 20'000'000;

// What is known of a local GPU besides its topology.
struct LocalGpu {
  std::optional<std::uint64_t> room;  // bytes of VRAM that nobody has; nothing: not known
  bool reachable = true;              // its render node can be opened
};

// Which of the assignments that the rules allow is wanted.
struct MatchWishes {
  std::vector<DeviceIds> fixed;   // these pairs or none: refused where the rules are against one
  std::string fixed_by;           // what demands them, for the refusal: "SLUICE_GPU_MAP"
  std::set<std::uint32_t> taken;  // local GPUs that others have
  std::map<std::uint32_t, std::uint64_t> need;  // bytes of VRAM by user gpu_id; 0 where it is not named
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
  const char* variable =
      nullptr;  // environment variable that, set to 0, drops the test; nullptr when none does

  bool operator==(const Mismatch&) const = default;
};

// Why one local GPU cannot stand in for one of the image. No mismatch: it could, were it not for the others.
struct PairReport {
  DeviceIds pair;
  std::vector<Mismatch> mismatches;
};

// One reason with all GPUs that it keeps apart: each of `sources` from each of `locals`.
struct SharedReason {
  std::vector<std::uint32_t> sources;  // user gpu_ids
  std::vector<std::uint32_t> locals;   // actual gpu_ids
  std::vector<Mismatch> mismatches;
};

struct Refusal {
  std::string sentence;
  std::vector<PairReport>
      pairs;  // each GPU of the image with each local one; empty when numbers alone decided
  std::uint64_t steps = 0;

  // `pairs`, each reason told once, in the order in which they first appear.
  std::vector<SharedReason> reasons() const;
  // The sentence, then a line for each of the reasons.
  std::string text() const;
};

using MatchOutcome = std::variant<Match, Refusal>;

// `source`: of the image, user gpu_ids. `local`: of this machine.
MatchOutcome match_gpus(const Topology& source, const Topology& local, const MatchRules& rules,
                        const MatchWishes& wishes = {});

}  // namespace sluice::kfd
