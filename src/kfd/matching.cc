// SPDX-License-Identifier: MIT
#include "kfd/matching.h"

#include <strings.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <string_view>
#include <utility>

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

// Properties that must be equal whatever the switches say.
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

// Properties of which the local GPU must have as much or more, and the switch of each test.
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

// One topology, cut to what matching looks at. Borrows the topology.
struct Side {
  explicit Side(const Topology& topology);

  std::vector<const Node*> gpus;  // ascending node_id
  std::vector<const Node*> cpus;
  std::vector<std::vector<CpuLink>> cpu_links;  // [gpu]
  std::vector<std::size_t> valid_links;         // [gpu]
  std::vector<std::size_t> gpus_on_cpu;         // [cpu]: GPUs with a link to it
  std::vector<GpuSet> groups;                   // joined by two-way XGMI, in order of their first GPU
};

Side::Side(const Topology& topology) {
  for (const Node& node : topology.nodes) (node.is_gpu() ? gpus : cpus).push_back(&node);
  cpu_links.resize(gpus.size());
  valid_links.resize(gpus.size());
  gpus_on_cpu.resize(cpus.size());
  const auto index_in = [](const std::vector<const Node*>& nodes, const Node* node) {
    return static_cast<std::size_t>(std::find(nodes.begin(), nodes.end(), node) - nodes.begin());
  };

  // neighbours[i]: GPUs with a two-way XGMI link to GPU i. Sets are for the first 64; more are refused before
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

// A link may be replaced by one that can do all that it can.
bool replaces(const CpuLink& source, const CpuLink& local) {
  if (source.type == kLinkXgmi && local.type != kLinkXgmi) return false;
  return local.two_way || !source.two_way;
}

const char* type_name(std::uint32_t type) {
  return type == kLinkXgmi ? "XGMI" : "PCIe";
}

class Matcher {
 public:
  Matcher(const Topology& source, const Topology& local, const MatchRules& rules, const MatchWishes& wishes)
      : source_(source),
        local_(local),
        hidden_count_(local.hidden.size()),
        rules_(rules),
        wishes_(wishes),
        wish_(source_.gpus.size()) {}

  MatchOutcome run();

 private:
  // Which local GPUs may stand in for each GPU of the image: one set each.
  using Rows = std::vector<GpuSet>;
  enum class Search { Found, None, GaveUp };

  // All reasons against one pair, the other pairs aside.
  std::vector<Mismatch> compare(std::size_t a, std::size_t b) const;
  void compare_cpu_links(std::size_t a, std::size_t b, std::vector<Mismatch>& mismatches) const;
  // Under KFD_NUMA_CHECK: `local` may stand in for `source`, a link of the image.
  bool replaces_under_numa(const CpuLink& source, const CpuLink& local) const {
    if (!replaces(source, local)) return false;
    return source.type == local.type || source_.gpus_on_cpu[source.cpu] == 1;
  }

  // Decides CPU nodes from `cpu` on (all GPUs consistent), then groups from `group` on; leaves a solution in
  // partner_.
  Search decide_cpus(const Rows& rows, std::size_t cpu, std::uint64_t cpus_used);
  Search decide_groups(const Rows& rows, std::size_t group, std::uint64_t groups_used);
  bool groups_can_fit(const Rows& rows, std::size_t first_group, std::uint64_t groups_used);
  Rows with_cpu(const Rows& rows, std::size_t cpu, std::size_t local_cpu) const;

  // Bipartite matching of the GPUs in `which` into `rows`; partner[b] = a or none. False when there is no
  // perfect one.
  bool assign(const Rows& rows, GpuSet which, std::vector<std::size_t>& partner);
  bool augment(const Rows& rows, std::size_t a, GpuSet& visited, std::vector<std::size_t>& partner);
  bool assignable(const Rows& rows) {
    std::vector<std::size_t> partner(local_.gpus.size(), kNone);
    return assign(rows, all_, partner);
  }
  // The perfect matching that gives each GPU what is best for it, those first that can stay where they were.
  // REQUIRES: there is one.
  void assign_best(Rows rows);

  // How well a pair is matched, the lower the better.
  enum Step : std::uint8_t { kSame, kHasRoom, kRoomUnknown, kNoRoom, kUnreachable, kSteps };
  struct Wish {
    Step step = kUnreachable;
    std::uint64_t room = 0;  // 0 where it is not known

    bool operator<(const Wish& other) const {
      return step != other.step ? step < other.step : room > other.room;
    }
  };
  Wish wish_of(std::size_t a, std::size_t b) const;
  // The local GPUs of a row, the best first; among equals in order of nodes.
  std::vector<std::size_t> by_wish(std::size_t a, GpuSet row) const;
  // What a decision leaves to the GPUs `which`; decisions with less are tried first.
  struct Cost {
    unsigned steps = 0;              // of the best that each has left, added up
    std::uint64_t missing_room = 0;  // the less room the fullest of these has, the more

    bool operator<(const Cost& other) const {
      return steps != other.steps ? steps < other.steps : missing_room < other.missing_room;
    }
  };
  Cost cost_of(const Rows& rows, GpuSet which) const;
  struct Decision {
    std::size_t local = 0;  // CPU node or group
    Rows rows;
    Cost cost;
  };
  static void best_first(std::vector<Decision>& decisions) {
    std::stable_sort(decisions.begin(), decisions.end(),
                     [](const Decision& x, const Decision& y) { return x.cost < y.cost; });
  }

  // Narrows the rows to what wishes_ demands.
  std::optional<Refusal> demand(Rows& rows);
  Search search(const Rows& rows);
  // With the least bad step that is enough.
  Search search_by_wish(const Rows& rows);
  Match match() const;
  Refusal refuse(std::string sentence);
  std::string why_none(const Rows& rows);

  static constexpr std::size_t kNone = ~std::size_t{0};

  Side source_;
  Side local_;
  std::size_t hidden_count_;
  MatchRules rules_;
  const MatchWishes& wishes_;
  std::vector<std::vector<Wish>> wish_;  // [GPU of the image][local GPU]
  std::uint64_t steps_limit_ = kMatchStepsMax;
  GpuSet all_ = 0;
  std::uint64_t steps_ = 0;
  std::vector<std::size_t> partner_;  // [local GPU]: GPU of the image
  std::vector<PairReport> pairs_;
};

void Matcher::compare_cpu_links(std::size_t a, std::size_t b, std::vector<Mismatch>& mismatches) const {
  for (const CpuLink& link : source_.cpu_links[a]) {
    const auto& candidates = local_.cpu_links[b];
    const bool any = std::any_of(candidates.begin(), candidates.end(),
                                 [&](const CpuLink& candidate) { return replaces(link, candidate); });
    const bool any_under_numa =
        std::any_of(candidates.begin(), candidates.end(),
                    [&](const CpuLink& candidate) { return replaces_under_numa(link, candidate); });
    if (any && (any_under_numa || !rules_.numa)) continue;
    std::string have;
    for (const CpuLink& candidate : candidates) {
      have += have.empty() ? "" : ", ";
      have += std::string(candidate.two_way ? "two-way " : "one-way ") + type_name(candidate.type);
    }
    mismatches.push_back({"link to CPU node " + std::to_string(source_.cpus[link.cpu]->node_id),
                          std::string(link.two_way ? "two-way " : "one-way ") + type_name(link.type),
                          have.empty() ? "none" : have, any ? kNumaVariable : nullptr});
  }
}

std::vector<Mismatch> Matcher::compare(std::size_t a, std::size_t b) const {
  const Node& source = *source_.gpus[a];
  const Node& local = *local_.gpus[b];
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
  if (rules_.capability && source.capability != local.capability) {
    note("capability", source.capability, local.capability, "KFD_CAPABILITY_CHECK");
  }
  if (rules_.vram_size && source.vram_size > local.vram_size) {
    note("vram_size", source.vram_size, local.vram_size, "KFD_VRAM_SIZE_CHECK");
  }
  for (const AtLeastField& at_least : kAtLeastFields) {
    const auto member = at_least.field.member;
    if (rules_.*at_least.test.member && source.*member > local.*member) {
      note(at_least.field.name, source.*member, local.*member, at_least.test.variable);
    }
  }
  if (source_.valid_links[a] > local_.valid_links[b]) {
    note("valid io_links", source_.valid_links[a], local_.valid_links[b], nullptr);
  }
  compare_cpu_links(a, b, mismatches);
  return mismatches;
}

bool Matcher::augment(const Rows& rows, std::size_t a, GpuSet& visited, std::vector<std::size_t>& partner) {
  for (GpuSet left = rows[a] & ~visited; left != 0; left = rows[a] & ~visited) {
    const auto b = static_cast<std::size_t>(std::countr_zero(left));
    visited |= bit(b);
    steps_++;
    if (partner[b] == kNone || augment(rows, partner[b], visited, partner)) {
      partner[b] = a;
      return true;
    }
  }
  return false;
}

bool Matcher::assign(const Rows& rows, GpuSet which, std::vector<std::size_t>& partner) {
  for (; which != 0; which &= which - 1) {
    GpuSet visited = 0;
    if (!augment(rows, static_cast<std::size_t>(std::countr_zero(which)), visited, partner)) return false;
  }
  return true;
}

Matcher::Wish Matcher::wish_of(std::size_t a, std::size_t b) const {
  const std::uint32_t source = source_.gpus[a]->gpu_id;
  const std::uint32_t local = local_.gpus[b]->gpu_id;
  const auto known = wishes_.local.find(local);
  const LocalGpu gpu = known != wishes_.local.end() ? known->second : LocalGpu();
  const auto wanted = wishes_.need.find(source);
  const std::uint64_t need = wanted != wishes_.need.end() ? wanted->second : 0;
  const std::uint64_t room = gpu.room.value_or(0);
  if (!gpu.reachable) return {kUnreachable, room};
  if (gpu.room && room < need) return {kNoRoom, room};
  if (source == local) return {kSame, room};
  return {gpu.room ? kHasRoom : kRoomUnknown, room};
}

std::vector<std::size_t> Matcher::by_wish(std::size_t a, GpuSet row) const {
  std::vector<std::size_t> order;
  for (; row != 0; row &= row - 1) order.push_back(static_cast<std::size_t>(std::countr_zero(row)));
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t x, std::size_t y) { return wish_[a][x] < wish_[a][y]; });
  return order;
}

Matcher::Cost Matcher::cost_of(const Rows& rows, GpuSet which) const {
  Cost cost;
  for (; which != 0; which &= which - 1) {
    const auto a = static_cast<std::size_t>(std::countr_zero(which));
    Wish best;
    for (GpuSet left = rows[a]; left != 0; left &= left - 1)
      best = std::min(best, wish_[a][static_cast<std::size_t>(std::countr_zero(left))]);
    cost.steps += best.step;
    cost.missing_room = std::max(cost.missing_room, ~best.room);
  }
  return cost;
}

void Matcher::assign_best(Rows rows) {
  std::vector<std::pair<unsigned, std::size_t>> order;
  for (std::size_t a = 0; a < rows.size(); a++) order.emplace_back(cost_of(rows, bit(a)).steps, a);
  std::sort(order.begin(), order.end());
  for (const auto& [steps, a] : order) {
    for (const std::size_t b : by_wish(a, rows[a])) {
      Rows fixed = rows;
      for (GpuSet& row : fixed) row &= ~bit(b);
      fixed[a] = bit(b);
      if (!assignable(fixed)) continue;
      rows = std::move(fixed);
      break;
    }
  }
  partner_.assign(local_.gpus.size(), kNone);
  (void)assign(rows, all_, partner_);
}

// Every link of the image to CPU node `cpu` must find its like on `local_cpu`.
Matcher::Rows Matcher::with_cpu(const Rows& rows, std::size_t cpu, std::size_t local_cpu) const {
  Rows narrowed = rows;
  for (std::size_t a = 0; a < rows.size(); a++) {
    for (const CpuLink& link : source_.cpu_links[a]) {
      if (link.cpu != cpu) continue;
      for (GpuSet left = narrowed[a]; left != 0; left &= left - 1) {
        const auto b = static_cast<std::size_t>(std::countr_zero(left));
        const auto& candidates = local_.cpu_links[b];
        if (std::none_of(candidates.begin(), candidates.end(), [&](const CpuLink& candidate) {
              return candidate.cpu == local_cpu && replaces_under_numa(link, candidate);
            })) {
          narrowed[a] &= ~bit(b);
        }
      }
    }
  }
  return narrowed;
}

Matcher::Search Matcher::decide_cpus(const Rows& rows, std::size_t cpu, std::uint64_t cpus_used) {
  while (cpu < source_.cpus.size() && source_.gpus_on_cpu[cpu] == 0) cpu++;
  if (!rules_.numa || cpu == source_.cpus.size()) return decide_groups(rows, 0, 0);
  GpuSet linked = 0;
  for (std::size_t a = 0; a < rows.size(); a++) {
    const auto& links = source_.cpu_links[a];
    if (std::any_of(links.begin(), links.end(), [cpu](const CpuLink& link) { return link.cpu == cpu; }))
      linked |= bit(a);
  }
  std::vector<Decision> decisions;
  for (std::size_t local_cpu = 0; local_cpu < local_.cpus.size(); local_cpu++) {
    if (local_.gpus_on_cpu[local_cpu] == 0 || (cpus_used & bit(local_cpu)) != 0) continue;
    Rows narrowed = with_cpu(rows, cpu, local_cpu);
    steps_ += rows.size();
    const Cost cost = cost_of(narrowed, linked);
    decisions.push_back({local_cpu, std::move(narrowed), cost});
  }
  best_first(decisions);
  for (const Decision& decision : decisions) {
    if (steps_ > steps_limit_) return Search::GaveUp;
    if (!assignable(decision.rows)) continue;
    const Search result = decide_cpus(decision.rows, cpu + 1, cpus_used | bit(decision.local));
    if (result != Search::None) return result;
  }
  return Search::None;
}

// Whether the groups from `first_group` on could each have a local group of their own: a matching of groups.
bool Matcher::groups_can_fit(const Rows& rows, std::size_t first_group, std::uint64_t groups_used) {
  Rows group_rows(source_.groups.size());
  for (std::size_t g = first_group; g < source_.groups.size(); g++) {
    for (std::size_t h = 0; h < local_.groups.size(); h++) {
      if ((groups_used & bit(h)) != 0) continue;
      Rows inside = rows;
      for (GpuSet& row : inside) row &= local_.groups[h];
      std::vector<std::size_t> partner(local_.gpus.size(), kNone);
      if (assign(inside, source_.groups[g], partner)) group_rows[g] |= bit(h);
    }
  }
  std::vector<std::size_t> partner(local_.groups.size(), kNone);
  for (std::size_t g = first_group; g < source_.groups.size(); g++) {
    GpuSet visited = 0;
    if (!augment(group_rows, g, visited, partner)) return false;
  }
  return true;
}

Matcher::Search Matcher::decide_groups(const Rows& rows, std::size_t group, std::uint64_t groups_used) {
  if (group == source_.groups.size()) {
    assign_best(rows);
    return Search::Found;
  }
  if (!groups_can_fit(rows, group, groups_used)) return Search::None;
  const GpuSet members = source_.groups[group];
  std::vector<Decision> decisions;
  for (std::size_t h = 0; h < local_.groups.size(); h++) {
    if ((groups_used & bit(h)) != 0) continue;
    Rows narrowed = rows;
    for (std::size_t a = 0; a < rows.size(); a++) {
      if ((members & bit(a)) != 0) narrowed[a] &= local_.groups[h];
    }
    // Later groups must not use this one; GPUs without a group may take what is left of it.
    for (std::size_t g = group + 1; g < source_.groups.size(); g++) {
      for (std::size_t a = 0; a < rows.size(); a++) {
        if ((source_.groups[g] & bit(a)) != 0) narrowed[a] &= ~local_.groups[h];
      }
    }
    steps_ += rows.size();
    const Cost cost = cost_of(narrowed, members);
    decisions.push_back({h, std::move(narrowed), cost});
  }
  best_first(decisions);
  for (const Decision& decision : decisions) {
    if (steps_ > steps_limit_) return Search::GaveUp;
    if (!assignable(decision.rows)) continue;
    const Search result = decide_groups(decision.rows, group + 1, groups_used | bit(decision.local));
    if (result != Search::None) return result;
  }
  return Search::None;
}

Matcher::Search Matcher::search(const Rows& rows) {
  steps_limit_ = steps_ + kMatchStepsMax;
  if (!assignable(rows)) return Search::None;
  return decide_cpus(rows, 0, 0);
}

// Rows that a wider step leaves as they were have been searched.
Matcher::Search Matcher::search_by_wish(const Rows& rows) {
  std::optional<Rows> searched;
  Search result = Search::None;
  for (unsigned step = 0; step < kSteps; step++) {
    Rows good = rows;
    for (std::size_t a = 0; a < rows.size(); a++) {
      for (GpuSet left = rows[a]; left != 0; left &= left - 1) {
        const auto b = static_cast<std::size_t>(std::countr_zero(left));
        if (wish_[a][b].step > step) good[a] &= ~bit(b);
      }
    }
    if (good == searched) continue;
    result = search(good);
    if (result == Search::Found) break;
    searched = std::move(good);
  }
  return result;
}

std::optional<Refusal> Matcher::demand(Rows& rows) {
  const auto index_of = [](const std::vector<const Node*>& gpus, std::uint32_t gpu_id) {
    return static_cast<std::size_t>(
        std::find_if(gpus.begin(), gpus.end(), [&](const Node* gpu) { return gpu->gpu_id == gpu_id; }) -
        gpus.begin());
  };
  for (std::size_t b = 0; b < local_.gpus.size(); b++) {
    if (!wishes_.taken.contains(local_.gpus[b]->gpu_id)) continue;
    for (GpuSet& row : rows) row &= ~bit(b);
  }
  for (const DeviceIds& pair : wishes_.fixed) {
    const std::size_t a = index_of(source_.gpus, pair.user_gpu_id);
    const std::size_t b = index_of(local_.gpus, pair.actual_gpu_id);
    if (a == source_.gpus.size()) continue;  // of another process
    const std::string says = wishes_.fixed_by + " puts GPU " + gpu_id_text(pair.user_gpu_id) +
                             " of the image on local GPU " + gpu_id_text(pair.actual_gpu_id) + ", which ";
    if (b == local_.gpus.size()) {
      pairs_.clear();
      return refuse(says + "is not here");
    }
    if ((rows[a] & bit(b)) == 0) {
      std::erase_if(pairs_, [&](const PairReport& report) { return report.pair != pair; });
      const bool fits = !pairs_.empty() && pairs_.front().mismatches.empty();
      return refuse(says + (fits ? "another GPU of the tree has" : "cannot stand in for it"));
    }
    for (GpuSet& row : rows) row &= ~bit(b);
    rows[a] = bit(b);
  }
  return std::nullopt;
}

Match Matcher::match() const {
  Match result;
  result.identity = true;
  result.steps = steps_;
  result.gpus.resize(source_.gpus.size());
  for (std::size_t b = 0; b < local_.gpus.size(); b++) {
    const std::size_t a = partner_[b];
    if (a == kNone) continue;
    result.gpus[a] = {source_.gpus[a]->gpu_id, local_.gpus[b]->gpu_id};
    result.identity = result.identity && source_.gpus[a]->gpu_id == local_.gpus[b]->gpu_id;
  }
  return result;
}

Refusal Matcher::refuse(std::string sentence) {
  return {std::move(sentence), std::move(pairs_), steps_};
}

// Says which of the rules that concern more than one GPU stands in the way, by leaving them out.
std::string Matcher::why_none(const Rows& rows) {
  for (std::size_t a = 0; a < rows.size(); a++) {
    if (rows[a] == 0)
      return "no local GPU can stand in for GPU " + gpu_id_text(source_.gpus[a]->gpu_id) + " of the image";
  }
  if (!assignable(rows))
    return "every GPU of the image fits some local GPU, but several fit only the same ones";
  const std::string prefix = "every GPU of the image fits a local GPU, but not all together: ";
  if (std::exchange(rules_.numa, false) && search(rows) == Search::Found) {
    return prefix + "the GPUs hang on CPU nodes in another way (KFD_NUMA_CHECK=0 allows this)";
  }
  return prefix + "the XGMI groups here are others than the image's";
}

MatchOutcome Matcher::run() {
  const std::size_t count = source_.gpus.size();
  const auto gpus = [](std::size_t number) {
    return std::to_string(number) + (number == 1 ? " GPU" : " GPUs");
  };
  const std::size_t local_count = local_.gpus.size();
  if (count > local_count) {
    std::string sentence = "the image was made with " + gpus(count) + " visible, here " + gpus(local_count) +
                           (local_count == 1 ? " is" : " are");
    if (hidden_count_ != 0) sentence += " (" + gpus(hidden_count_) + " hidden here, by a device cgroup)";
    return refuse(std::move(sentence));
  }
  if (local_count > kGpusMax)
    return refuse("more than " + gpus(kGpusMax) + ", which is what the KFD gives a process");
  if (source_.groups.size() > local_.groups.size()) {
    return refuse("the image has " + std::to_string(source_.groups.size()) +
                  " XGMI groups of GPUs, here are " + std::to_string(local_.groups.size()));
  }
  if (source_.cpus.size() > kCpuNodesMax || local_.cpus.size() > kCpuNodesMax) {
    return refuse("more than " + std::to_string(kCpuNodesMax) + " CPU nodes");
  }

  all_ = count == kGpusMax ? ~GpuSet{0} : bit(count) - 1;
  Rows fitting(count);
  pairs_.reserve(count * local_count);
  for (std::size_t a = 0; a < count; a++) {
    for (std::size_t b = 0; b < local_count; b++) {
      PairReport report{{source_.gpus[a]->gpu_id, local_.gpus[b]->gpu_id}, compare(a, b)};
      steps_++;
      if (report.mismatches.empty()) fitting[a] |= bit(b);
      pairs_.push_back(std::move(report));
      wish_[a].push_back(wish_of(a, b));
    }
  }
  const Rows before = fitting;
  if (auto refusal = demand(fitting)) return std::move(*refusal);
  switch (search_by_wish(fitting)) {
    case Search::Found:
      return match();
    case Search::GaveUp:
      return refuse("gave up after " + std::to_string(steps_) +
                    " steps of search for GPUs that match all together");
    case Search::None:
      break;
  }
  std::string why = why_none(fitting);
  if (fitting != before) why = wishes_.fixed_by + " leaves no match for the other GPUs: " + why;
  return refuse(std::move(why));
}

std::string describe(const std::vector<Mismatch>& mismatches) {
  if (mismatches.empty()) return "fits by itself";
  std::string text;
  for (const Mismatch& mismatch : mismatches) {
    text += text.empty() ? "" : "; ";
    text += mismatch.property + " " + mismatch.source + " in the image, " + mismatch.local + " here";
    if (mismatch.variable != nullptr) text += std::string(" (") + mismatch.variable + "=0 allows this)";
  }
  return text;
}

}  // namespace

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
      parsed.warnings.push_back(std::string(entry.variable) + "='" + printable(value) +
                                "' is none of 0, 1, YES, NO: the test stays on");
    }
  }
  return parsed;
}

std::vector<SharedReason> Refusal::reasons() const {
  std::vector<SharedReason> all;
  for (auto first = pairs.begin(); first != pairs.end();) {
    const std::uint32_t source = first->pair.user_gpu_id;
    const auto last = std::find_if(
        first, pairs.end(), [source](const PairReport& report) { return report.pair.user_gpu_id != source; });
    std::vector<SharedReason> of_source;
    for (; first != last; ++first) {
      const auto known = std::find_if(of_source.begin(), of_source.end(), [&](const SharedReason& reason) {
        return reason.mismatches == first->mismatches;
      });
      if (known == of_source.end()) {
        of_source.push_back({{source}, {first->pair.actual_gpu_id}, first->mismatches});
      } else {
        known->locals.push_back(first->pair.actual_gpu_id);
      }
    }
    for (SharedReason& reason : of_source) {
      const auto known = std::find_if(all.begin(), all.end(), [&](const SharedReason& other) {
        return other.locals == reason.locals && other.mismatches == reason.mismatches;
      });
      if (known == all.end()) {
        all.push_back(std::move(reason));
      } else {
        known->sources.push_back(source);
      }
    }
  }
  return all;
}

std::string Refusal::text() const {
  const auto names = [](const std::vector<std::uint32_t>& gpu_ids) {
    std::string list;
    for (const std::uint32_t gpu_id : gpu_ids) list += (list.empty() ? "" : ", ") + gpu_id_text(gpu_id);
    return list;
  };
  std::string text = sentence;
  for (const SharedReason& reason : reasons()) {
    text += "\n  GPU " + names(reason.sources) + " on local GPU " + names(reason.locals) + ": " +
            describe(reason.mismatches);
  }
  return text;
}

MatchOutcome match_gpus(const Topology& source, const Topology& local, const MatchRules& rules,
                        const MatchWishes& wishes) {
  return Matcher(source, local, rules, wishes).run();
}

}  // namespace sluice::kfd
