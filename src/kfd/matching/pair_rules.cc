// SPDX-License-Identifier: MIT
#include "kfd/matching/pair_rules.h"

#include <strings.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/format.h"
#include "base/printable.h"

namespace sluice::kfd {
namespace {

struct Switch {
  const char* variable;
  bool MatchRules::*member;
};

constexpr char kNumaVariable[] = "KFD_NUMA_CHECK";
constexpr Switch kSwitches[] = {
    {"KFD_FW_VER_CHECK", &MatchRules::fw_version},
    {"KFD_SDMA_FW_VER_CHECK", &MatchRules::sdma_fw_version},
    {"KFD_CACHES_COUNT_CHECK", &MatchRules::caches_count},
    {"KFD_NUM_GWS_CHECK", &MatchRules::num_gws},
    {"KFD_VRAM_SIZE_CHECK", &MatchRules::vram_size},
    {kNumaVariable, &MatchRules::numa},
    {"KFD_CAPABILITY_CHECK", &MatchRules::capability},
};

// Properties that must be equal, whatever the switches.
constexpr NodeField kEqualFields[] = {
    {"simd_count", &Node::simd_count},
    {"mem_banks_count", &Node::mem_banks_count},
    {"io_links_count", &Node::io_links_count},
    {"max_waves_per_simd", &Node::max_waves_per_simd},
    {"lds_size_in_kb", &Node::lds_size_in_kb},
    {"wave_front_size", &Node::wave_front_size},
    {"array_count", &Node::array_count},
    {"simd_arrays_per_engine", &Node::simd_arrays_per_engine},
    {"cu_per_simd_array", &Node::cu_per_simd_array},
    {"simd_per_cu", &Node::simd_per_cu},
    {"max_slots_scratch_cu", &Node::max_slots_scratch_cu},
    {"vendor_id", &Node::vendor_id},
    {"device_id", &Node::device_id},
    {"num_sdma_engines", &Node::num_sdma_engines},
    {"num_sdma_xgmi_engines", &Node::num_sdma_xgmi_engines},
    {"num_sdma_queues_per_engine", &Node::num_sdma_queues_per_engine},
    {"num_cp_queues", &Node::num_cp_queues},
    {"vram_public", &Node::vram_public},
};

// Properties that the local GPU must have at least as much of, and each test's switch.
struct AtLeastField {
  NodeField field;
  Switch test;
};
constexpr AtLeastField kAtLeastFields[] = {
    {{"num_gws", &Node::num_gws}, {"KFD_NUM_GWS_CHECK", &MatchRules::num_gws}},
    {{"caches_count", &Node::caches_count}, {"KFD_CACHES_COUNT_CHECK", &MatchRules::caches_count}},
    {{"fw_version", &Node::fw_version}, {"KFD_FW_VER_CHECK", &MatchRules::fw_version}},
    {{"sdma_fw_version", &Node::sdma_fw_version}, {"KFD_SDMA_FW_VER_CHECK", &MatchRules::sdma_fw_version}},
};

const char* type_name(std::uint32_t type) {
  return type == kLinkXgmi ? "XGMI" : "PCIe";
}

void compare_cpu_links(const Side& source, std::size_t a, const Side& local, std::size_t b,
                       const MatchRules& rules, std::vector<Mismatch>& mismatches) {
  for (const CpuLink& link : source.cpu_links[a]) {
    const auto& candidates = local.cpu_links[b];
    const bool any = std::any_of(candidates.begin(), candidates.end(),
                                 [&](const CpuLink& candidate) { return replaces(link, candidate); });
    const bool any_under_numa =
        std::any_of(candidates.begin(), candidates.end(),
                    [&](const CpuLink& candidate) { return replaces_under_numa(source, link, candidate); });
    if (any && (any_under_numa || !rules.numa)) continue;
    std::string have;
    for (const CpuLink& candidate : candidates) {
      have += have.empty() ? "" : ", ";
      have += std::string(candidate.two_way ? "two-way " : "one-way ") + type_name(candidate.type);
    }
    mismatches.push_back({"link to CPU node " + std::to_string(source.cpus[link.cpu]->node_id),
                          std::string(link.two_way ? "two-way " : "one-way ") + type_name(link.type),
                          have.empty() ? "none" : have, any ? kNumaVariable : nullptr});
  }
}

}  // namespace

Side::Side(const Topology& topology) {
  for (const Node& node : topology.nodes) (node.is_gpu() ? gpus : cpus).push_back(&node);
  cpu_links.resize(gpus.size());
  valid_links.resize(gpus.size());
  gpus_on_cpu.resize(cpus.size());
  const auto index_in = [](const std::vector<const Node*>& nodes, const Node* node) {
    return static_cast<std::size_t>(std::find(nodes.begin(), nodes.end(), node) - nodes.begin());
  };

  // neighbours[i]: GPUs with a two-way XGMI link to GPU i. Sets cover the first 64; more are refused before
  // use.
  const std::size_t tracked = std::min(gpus.size(), kGpusMax);
  std::vector<GpuSet> neighbours(tracked);
  for (std::size_t i = 0; i < tracked; i++) {
    for (const IoLink& link : gpus[i]->links) {
      const Node* peer = topology.find_node(link.node_to);
      if (peer == nullptr) continue;
      valid_links[i]++;
      const bool two_way = topology.bidirectional(*gpus[i], link);
      if (!peer->is_gpu()) {
        const std::size_t cpu = index_in(cpus, peer);
        const auto same_cpu = [cpu](const CpuLink& other) { return other.cpu == cpu; };
        if (std::none_of(cpu_links[i].begin(), cpu_links[i].end(), same_cpu)) gpus_on_cpu[cpu]++;
        cpu_links[i].push_back({cpu, link.type, two_way});
      } else if (two_way && link.type == kLinkXgmi && peer != gpus[i]) {
        if (const std::size_t j = index_in(gpus, peer); j < tracked) neighbours[i] |= bit(j);
      }
    }
  }
  GpuSet grouped = 0;
  for (std::size_t i = 0; i < tracked; i++) {
    if ((grouped & bit(i)) != 0 || neighbours[i] == 0) continue;
    GpuSet group = bit(i);
    for (GpuSet grown = 0; grown != group;) {
      grown = group;
      for (std::size_t j = 0; j < tracked; j++) {
        if ((grown & bit(j)) != 0) group |= neighbours[j];
      }
    }
    groups.push_back(group);
    grouped |= group;
  }
}

bool replaces(const CpuLink& source, const CpuLink& local) {
  if (source.type == kLinkXgmi && local.type != kLinkXgmi) return false;  // unreached: a guard
  return local.two_way || !source.two_way;
}

bool replaces_under_numa(const Side& side, const CpuLink& source, const CpuLink& local) {
  if (!replaces(source, local)) return false;
  return source.type == local.type || side.gpus_on_cpu[source.cpu] == 1;
}

std::vector<Mismatch> compare(const Side& source_side, std::size_t a, const Side& local_side, std::size_t b,
                              const MatchRules& rules) {
  const Node& source = *source_side.gpus[a];
  const Node& local = *local_side.gpus[b];
  std::vector<Mismatch> mismatches;
  const auto note = [&](std::string_view property, std::uint64_t theirs, std::uint64_t ours,
                        const char* variable) {
    mismatches.push_back({std::string(property), std::to_string(theirs), std::to_string(ours), variable});
  };
  for (const NodeField& field : kEqualFields) {
    if (source.*field.member != local.*field.member) {
      note(field.name, source.*field.member, local.*field.member, nullptr);
    }
  }
  if (rules.capability && source.capability != local.capability) {
    note("capability", source.capability, local.capability, "KFD_CAPABILITY_CHECK");
  }
  if (rules.vram_size && source.vram_size > local.vram_size) {
    note("vram_size", source.vram_size, local.vram_size, "KFD_VRAM_SIZE_CHECK");
  }
  for (const AtLeastField& at_least : kAtLeastFields) {
    const auto member = at_least.field.member;
    if (rules.*at_least.test.member && source.*member > local.*member) {
      note(at_least.field.name, source.*member, local.*member, at_least.test.variable);
    }
  }
  if (source_side.valid_links[a] > local_side.valid_links[b]) {
    note("valid io_links", source_side.valid_links[a], local_side.valid_links[b], nullptr);
  }
  compare_cpu_links(source_side, a, local_side, b, rules, mismatches);
  return mismatches;
}

ParsedMatchRules parse_match_rules(const std::function<const char*(const char*)>& lookup) {
  ParsedMatchRules parsed;
  for (const Switch& entry : kSwitches) {
    const char* value = lookup(entry.variable);
    if (value == nullptr) continue;
    if (::strcasecmp(value, "1") == 0 || ::strcasecmp(value, "YES") == 0) {
      parsed.rules.*entry.member = true;
    } else if (::strcasecmp(value, "0") == 0 || ::strcasecmp(value, "NO") == 0) {
      parsed.rules.*entry.member = false;
    } else {
      parsed.warnings.push_back(formatted("{}='{}' is not 0, 1, YES or NO; the test stays on [SL-S01]",
                                          entry.variable, printable(value)));
    }
  }
  return parsed;
}

}  // namespace sluice::kfd
