// SPDX-License-Identifier: MIT
#include "kfd/matching/matching.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "base/format.h"
#include "kfd/matching/pair_rules.h"

namespace sluice::kfd {
namespace {

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
  // The local GPUs that may replace each GPU of the image: one set each.
  using Rows = std::vector<GpuSet>;
  enum class Search { Found, None, GaveUp };

  // Decides CPU nodes from `cpu` on (all GPUs consistent), then groups from `group` on; leaves a solution in
  // partner_.
  Search decide_cpus(const Rows& rows, std::size_t cpu, std::uint64_t cpus_used);
  Search decide_groups(const Rows& rows, std::size_t group, std::uint64_t groups_used);
  bool groups_can_fit(const Rows& rows, std::size_t first_group, std::uint64_t groups_used);
  Rows with_cpu(const Rows& rows, std::size_t cpu, std::size_t local_cpu) const;

  // Bipartite matching of the GPUs in `which` into `rows`; partner[b] = a or none. False if there is no
  // perfect one.
  bool assign(const Rows& rows, GpuSet which, std::vector<std::size_t>& partner);
  bool augment(const Rows& rows, std::size_t a, GpuSet& visited, std::vector<std::size_t>& partner);
  bool assignable(const Rows& rows) {
    std::vector<std::size_t> partner(local_.gpus.size(), kNone);
    return assign(rows, all_, partner);
  }
  // The perfect matching that gives each GPU its best choice; GPUs that can stay in place choose first.
  // REQUIRES: there is one.
  void assign_best(Rows rows);

  // How well a pair is matched, the lower the better.
  enum Step : std::uint8_t { kSame, kHasRoom, kRoomUnknown, kNoRoom, kUnreachable, kSteps };
  struct Wish {
    Step step = kUnreachable;
    std::uint64_t room = 0;  // 0 if unknown

    bool operator<(const Wish& other) const {
      return step != other.step ? step < other.step : room > other.room;
    }
  };
  Wish wish_of(std::size_t a, std::size_t b) const;
  // The local GPUs of a row, best first; equals in order of nodes.
  std::vector<std::size_t> by_wish(std::size_t a, GpuSet row) const;
  // What a decision costs the GPUs `which`; cheaper decisions are tried first.
  struct Cost {
    unsigned steps = 0;              // sum over the best choice left to each
    std::uint64_t missing_room = 0;  // grows as the fullest of these has less room

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

  // Narrows the rows to the demands of wishes_.
  std::optional<Refusal> demand(Rows& rows);
  Search search(const Rows& rows);
  // Searches with the best step that suffices.
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

// Every link of the image to CPU node `cpu` must have a counterpart on `local_cpu`.
Matcher::Rows Matcher::with_cpu(const Rows& rows, std::size_t cpu, std::size_t local_cpu) const {
  Rows narrowed = rows;
  for (std::size_t a = 0; a < rows.size(); a++) {
    for (const CpuLink& link : source_.cpu_links[a]) {
      if (link.cpu != cpu) continue;
      for (GpuSet left = narrowed[a]; left != 0; left &= left - 1) {
        const auto b = static_cast<std::size_t>(std::countr_zero(left));
        const auto& candidates = local_.cpu_links[b];
        if (std::none_of(candidates.begin(), candidates.end(), [&](const CpuLink& candidate) {
              return candidate.cpu == local_cpu && replaces_under_numa(source_, link, candidate);
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

// Whether the groups from `first_group` on could each have their own local group: a matching of groups.
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
    // Later groups must not use this one; GPUs without a group may use the rest of it.
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

// Rows that a wider step does not change have been searched.
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
    if (a == source_.gpus.size()) continue;  // a GPU of another process
    const std::string says =
        formatted("{} puts GPU {} of the image on local GPU {}, which ", wishes_.fixed_by,
                  gpu_id_text(pair.user_gpu_id), gpu_id_text(pair.actual_gpu_id));
    if (b == local_.gpus.size()) {
      pairs_.clear();
      return refuse(says +
                    "this process does not see; give its container that GPU, or choose another [SL-G33]");
    }
    if ((rows[a] & bit(b)) == 0) {
      std::erase_if(pairs_, [&](const PairReport& report) { return report.pair != pair; });
      const bool fits = !pairs_.empty() && pairs_.front().mismatches.empty();
      return refuse(says + (fits ? "another GPU of the tree has already; choose another [SL-G34]"
                                 : "cannot stand in for it; choose another [SL-G35]"));
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

// Finds the rule for several GPUs that prevents a match, by leaving each out.
std::string Matcher::why_none(const Rows& rows) {
  for (std::size_t a = 0; a < rows.size(); a++) {
    if (rows[a] == 0)
      return formatted(
          "no local GPU can stand in for GPU {} of the image; see the differences below [SL-G36]",
          gpu_id_text(source_.gpus[a]->gpu_id));
  }
  if (!assignable(rows))
    return "every GPU of the image fits some local GPU, but several fit only the same ones; give this "
           "process more GPUs "
           "[SL-G37]";
  const std::string prefix = "every GPU of the image fits a local GPU, but not all together: ";
  if (std::exchange(rules_.numa, false) && search(rows) == Search::Found) {
    return prefix + "their CPU nodes differ from the image's; KFD_NUMA_CHECK=0 allows this [SL-G38]";
  }
  return prefix +
         "their XGMI groups differ from the image's; restore on a machine that is wired alike [SL-G39]";
}

MatchOutcome Matcher::run() {
  const std::size_t count = source_.gpus.size();
  const auto gpus = [](std::size_t number) {
    return std::to_string(number) + (number == 1 ? " GPU" : " GPUs");
  };
  const std::size_t local_count = local_.gpus.size();
  if (count > local_count) {
    return refuse(
        formatted("the image was made with {} visible, here {} {} visible{}; make as many visible [SL-G40]",
                  gpus(count), gpus(local_count), local_count == 1 ? "is" : "are",
                  hidden_count_ == 0 ? "" : formatted(" and a device cgroup hides {}", gpus(hidden_count_))));
  }
  if (local_count > kGpusMax)
    return refuse(formatted(
        "more than {} are visible here, the KFD's limit for a process; hide some [SL-G41]", gpus(kGpusMax)));
  if (source_.groups.size() > local_.groups.size()) {
    return refuse(formatted(
        "the image has {} XGMI groups of GPUs, this machine has {}; restore on a machine with as many "
        "[SL-G42]",
        source_.groups.size(), local_.groups.size()));
  }
  if (source_.cpus.size() > kCpuNodesMax || local_.cpus.size() > kCpuNodesMax) {
    return refuse(
        formatted("a machine with more than {} CPU nodes is not supported; restore on a smaller one [SL-G43]",
                  kCpuNodesMax));
  }

  all_ = count == kGpusMax ? ~GpuSet{0} : bit(count) - 1;
  Rows fitting(count);
  pairs_.reserve(count * local_count);
  for (std::size_t a = 0; a < count; a++) {
    for (std::size_t b = 0; b < local_count; b++) {
      PairReport report{{source_.gpus[a]->gpu_id, local_.gpus[b]->gpu_id},
                        compare(source_, a, local_, b, rules_)};
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
      return refuse(formatted(
          "no match was found in {} steps of search; name the GPUs with SLUICE_GPU_MAP [SL-G44]", steps_));
    case Search::None:
      break;
  }
  std::string why = why_none(fitting);
  if (fitting != before) why = formatted("{} leaves no match for the other GPUs: {}", wishes_.fixed_by, why);
  return refuse(std::move(why));
}

}  // namespace

MatchOutcome match_gpus(const Topology& source, const Topology& local, const MatchRules& rules,
                        const MatchWishes& wishes) {
  return Matcher(source, local, rules, wishes).run();
}

}  // namespace sluice::kfd
