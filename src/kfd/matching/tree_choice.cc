// SPDX-License-Identifier: MIT
#include "kfd/matching/tree_choice.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>
#include <variant>

#include "base/format.h"

namespace sluice::kfd {

namespace {

const MappedGpu* find_pair(std::span<const MappedGpu> pairs, std::uint32_t source_minor) {
  const auto found = std::find_if(pairs.begin(), pairs.end(), [source_minor](const MappedGpu& pair) {
    return pair.source_minor == source_minor;
  });
  return found != pairs.end() ? &*found : nullptr;
}

// Local GPUs that the tree or the user gives to a GPU that this process lacks are taken.
MatchWishes wishes_of(const Topology& source, std::span<const MappedGpu> agreed, const TreeGpus& tree,
                      const std::map<std::uint32_t, LocalGpu>& local) {
  MatchWishes wishes;
  wishes.local = local;
  for (const Node& gpu : source.nodes) {
    const auto needed = gpu.is_gpu() ? tree.need.find(gpu.drm_render_minor) : tree.need.end();
    if (needed != tree.need.end()) wishes.need[gpu.gpu_id] = needed->second;
  }
  std::set<std::uint32_t> known;  // minors
  for (const std::span<const MappedGpu> pairs : {agreed, std::span<const MappedGpu>(tree.map)}) {
    for (const MappedGpu& pair : pairs) {
      if (!known.insert(pair.source_minor).second) continue;
      if (const Node* gpu = source.find_render_minor(pair.source_minor)) {
        wishes.fixed.push_back({gpu->gpu_id, pair.actual_gpu_id});
      } else {
        wishes.taken.insert(pair.actual_gpu_id);
      }
    }
  }
  wishes.fixed_by = agreed.empty() ? kGpuMapSetting : "another process of the tree";
  return wishes;
}

bool holds_all_gpus_of(const Topology& wide, const Topology& narrow) {
  return std::all_of(narrow.nodes.begin(), narrow.nodes.end(), [&](const Node& node) {
    return !node.is_gpu() || wide.find_render_minor(node.drm_render_minor) != nullptr;
  });
}

}  // namespace

void add_topology(std::vector<Topology>& topologies, const Topology& topology) {
  const auto same = [&](const Topology& known) { return known.nodes == topology.nodes; };
  if (std::any_of(topologies.begin(), topologies.end(), same)) return;
  const bool widest = topologies.empty() || topology.gpu_count() > topologies.front().gpu_count();
  topologies.insert(widest ? topologies.begin() : topologies.end(), topology);
}

bool agree(std::vector<MappedGpu>& agreed, const MappedGpu& pair) {
  if (find_pair(agreed, pair.source_minor) != nullptr) return false;
  agreed.push_back(pair);
  return true;
}

TreeChoice choose_gpus(const ProcessGpus& process, const TreeGpus& tree, std::vector<MappedGpu> agreed,
                       const LocalGpus& local, const MatchRules& rules) {
  TreeChoice choice{{}, true, false, std::move(agreed)};
  const auto match = [&](const Topology& source, std::span<const MappedGpu> bound_by) {
    return match_gpus(source, local.topology, rules, wishes_of(source, bound_by, tree, local.gpus));
  };
  const auto match_for_all = [&](const Topology& source) {
    MatchOutcome outcome = match(source, choice.agreed);
    if (const auto* matched = std::get_if<Match>(&outcome)) {
      for (const DeviceIds& pair : matched->gpus)
        (void)agree(choice.agreed, {source.find_gpu(pair.user_gpu_id)->drm_render_minor, pair.actual_gpu_id});
    }
    return outcome;
  };
  if (choice.agreed.empty() && holds_all_gpus_of(tree.widest, process.topology))
    (void)match_for_all(tree.widest);
  choice.outcome = match_for_all(process.topology);
  if (std::holds_alternative<Match>(choice.outcome) || choice.agreed.empty()) return choice;
  choice.must_follow = process.shares_memory;
  choice.follows = process.shares_memory;
  if (!choice.follows) choice.outcome = match(process.topology, {});
  return choice;
}

Error TreeChoice::refused() const {
  return Error{ENODEV,
               formatted("the image's GPUs cannot be matched to local ones; see the table above{} [SL-R14]",
                         must_follow ? ", and give all processes that share GPU memory the same GPUs" : "")};
}

const Node* find_gpu_of(const RenderFile& file, const Topology& source) {
  return file.minor != 0 ? source.find_render_minor(file.minor) : source.find_gpu(file.gpu_id);
}

Result<MappedGpu> choose_without_kfd(const RenderFile& file, std::span<const MappedGpu> agreed,
                                     const Topology& local) {
  const MappedGpu* pair = find_pair(agreed, file.minor);
  if (pair != nullptr && local.find_gpu(pair->actual_gpu_id) != nullptr) return *pair;
  if (local.find_gpu(file.gpu_id) != nullptr) return MappedGpu{file.minor, file.gpu_id};
  return Error{
      ENODEV,
      formatted("{} of the image belongs to GPU {}, which is not here, and the image does not describe it; "
                "restore where that GPU is [SL-R16]",
                file.words, file.gpu_id)};
}

}  // namespace sluice::kfd
