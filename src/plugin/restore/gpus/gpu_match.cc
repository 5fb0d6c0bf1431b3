// SPDX-License-Identifier: MIT
#include "plugin/restore/gpus/gpu_match.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/format.h"
#include "drm/device.h"
#include "images/files.h"
#include "kfd/vram_room.h"
#include "plugin/contents/local_machine.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {

namespace {

constexpr std::size_t kNamedMax = 8;  // GPUs named in an error

// Whether this task can open the GPU's render node: its container has it and allows it.
bool can_open(const kfd::Node& gpu) {
  return ::access(drm::Device::render_node(gpu.drm_render_minor).c_str(), R_OK | W_OK) == 0;
}

bool shares_memory(const kfd::KfdImage& image) {
  return std::any_of(image.bos.begin(), image.bos.end(),
                     [](const kfd::BoEntry& bo) { return bo.shared != 0; });
}

bool holds_all_gpus_of(const kfd::Topology& wide, const kfd::Topology& narrow) {
  return std::all_of(narrow.nodes.begin(), narrow.nodes.end(), [&](const kfd::Node& node) {
    return !node.is_gpu() || wide.find_render_minor(node.drm_render_minor) != nullptr;
  });
}

}  // namespace

// Once: a task that was given a node keeps it.
Result<void> GpuMatch::read_local() {
  if (local_.nodes.empty()) {
    SLUICE_TRY_ASSIGN(local_, local_topology());
  }
  return {};
}

// REQUIRES: nobody else reserves meanwhile. Reservations are read first, see VramLedger.
std::map<std::uint32_t, kfd::LocalGpu> GpuMatch::local_gpus() const {
  std::map<std::uint32_t, kfd::LocalGpu> gpus;
  for (const kfd::Node& node : local_.nodes) {
    if (!node.is_gpu()) continue;
    const std::uint64_t reserved =
        tree_ != nullptr && tree_->ledger ? tree_->ledger->reserved_by_others(node.gpu_id) : 0;
    kfd::LocalGpu& gpu = gpus[node.gpu_id];
    gpu.reachable = can_open(node);
    if (const auto use = kfd::vram_use(node.drm_render_minor))
      gpu.room = use->room() > reserved ? use->room() - reserved : 0;
  }
  if (std::none_of(gpus.begin(), gpus.end(), [](const auto& gpu) { return gpu.second.reachable; })) {
    for (auto& [gpu_id, gpu] : gpus) gpu.reachable = true;  // so that free VRAM decides
  }
  return gpus;
}

// Chooses, and tells the tree and other restores before any other can choose. A task that does not follow the
// tree tells nobody.
kfd::MatchOutcome GpuMatch::choose(const kfd::Topology& source, bool follows) {
  if (tree_ == nullptr) return kfd::match_gpus(source, local_, rules_);
  std::optional<FutexLocked> locked;
  if (tree_->ledger) tree_->ledger->lock_into(locked);
  const std::vector<kfd::MappedGpu> agreed = follows ? tree_->agreed() : std::vector<kfd::MappedGpu>();
  const kfd::MatchWishes wishes = kfd::tree_wishes(source, agreed, tree_->map, tree_->need, local_gpus());
  kfd::MatchOutcome outcome = kfd::match_gpus(source, local_, rules_, wishes);
  const auto* match = std::get_if<kfd::Match>(&outcome);
  if (match == nullptr || !follows) return outcome;
  for (const kfd::DeviceIds& pair : match->gpus)
    agree(source.find_gpu(pair.user_gpu_id)->drm_render_minor, pair.actual_gpu_id);
  return outcome;
}

// REQUIRES: the locks of tree and ledger.
void GpuMatch::agree(std::uint32_t source_minor, std::uint32_t actual_gpu_id) {
  const auto agreed = tree_->agreed();
  if (std::any_of(agreed.begin(), agreed.end(),
                  [&](const kfd::MappedGpu& pair) { return pair.source_minor == source_minor; }))
    return;
  tree_->agree({source_minor, actual_gpu_id});
  const auto need = tree_->need.find(source_minor);
  if (tree_->ledger && need != tree_->need.end()) tree_->ledger->reserve(actual_gpu_id, need->second);
}

Result<void> GpuMatch::match(const kfd::KfdImage& image, const kfd::MatchRules& rules) {
  SLUICE_TRY(read_local());
  rules_ = rules;
  std::optional<FutexLocked> locked;
  if (tree_ != nullptr) {
    tree_->lock_into(locked);
    // GPUs that belong together are chosen together, if this task sees as many as the one that saw the most.
    if (tree_->agreed().empty() && holds_all_gpus_of(tree_->widest, image.topology))
      (void)choose(tree_->widest, true);
  }
  kfd::MatchOutcome outcome = choose(image.topology, true);
  const bool agreed = tree_ != nullptr && !tree_->agreed().empty();
  if (std::holds_alternative<kfd::Refusal>(outcome) && agreed && !shares_memory(image)) {
    log_line(Level::Info, formatted("process {} cannot have the GPUs of the rest of its tree; it shares no "
                                    "GPU memory, so it is matched by "
                                    "itself",
                                    image.pid));
    outcome = choose(image.topology, false);
    follows_ = false;
  }
  if (const auto* refusal = std::get_if<kfd::Refusal>(&outcome)) {
    log_text(Level::Error, refusal->text());
    return Error{ENODEV,
                 formatted("the image's GPUs cannot be matched to local ones; see the table above{} [SL-R14]",
                           agreed && shares_memory(image)
                               ? ", and give all processes that share GPU memory the same GPUs"
                               : "")};
  }
  match_ = std::get<kfd::Match>(std::move(outcome));
  source_ = image.topology;
  for (const kfd::DeviceIds& pair : match_->gpus) {
    if (pair.user_gpu_id != pair.actual_gpu_id) log_line(Level::Info, why_moved(pair));
  }
  return {};
}

// Says that another GPU replaces this one and, if the original is present, how much it has free.
std::string GpuMatch::why_moved(const kfd::DeviceIds& pair) const {
  const kfd::Node& source = *source_.find_gpu(pair.user_gpu_id);
  std::string text = "GPU " + kfd::gpu_words(source) + " of the image is " +
                     kfd::gpu_words(*local_.find_gpu(pair.actual_gpu_id)) + " here";
  const kfd::Node* same = local_.find_gpu(pair.user_gpu_id);
  if (tree_ == nullptr || same == nullptr) return text;
  const auto need = tree_->need.find(source.drm_render_minor);
  const auto use = kfd::vram_use(same->drm_render_minor);
  if (need == tree_->need.end() || !use || use->room() >= need->second) return text;
  return text + ": its own has " + kfd::size_words(use->room()) + " of VRAM free, and " +
         kfd::size_words(need->second) + " are needed";
}

Result<const kfd::Node*> GpuMatch::local_gpu(std::uint32_t user_gpu_id) const {
  const auto ids =
      std::find_if(match_->gpus.begin(), match_->gpus.end(),
                   [&](const kfd::DeviceIds& candidate) { return candidate.user_gpu_id == user_gpu_id; });
  const kfd::Node* node = ids != match_->gpus.end() ? local_.find_gpu(ids->actual_gpu_id) : nullptr;
  if (node == nullptr)  // unreached: no test
    return Error{ENODEV, formatted("no local GPU stands in for GPU {}, which the image does not have; use "
                                   "another checkpoint [SL-R15]",
                                   user_gpu_id)};
  return node;
}

Result<const kfd::Node*> GpuMatch::gpu_of(const RenderImage& image) {
  if (!match_) return same_gpu(image);
  // For a GPU that the KFD process did not see, the image has the GPU's own id, not the processes' id.
  const kfd::Node* source = image.minor != RenderImage::kUnknownMinor ? source_.find_render_minor(image.minor)
                                                                      : source_.find_gpu(image.gpu_id);
  return source != nullptr ? local_gpu(source->gpu_id) : same_gpu(image);
}

const kfd::Node* GpuMatch::agreed_gpu(std::uint32_t source_minor) const {
  if (tree_ == nullptr) return nullptr;
  for (const kfd::MappedGpu& pair : tree_->agreed()) {
    if (pair.source_minor == source_minor) return local_.find_gpu(pair.actual_gpu_id);
  }
  return nullptr;
}

// The GPU of a render file that the task's KFD process does not know. It is the tree's choice for it, else
// the one of the same gpu_id, a hash over the GPU's place and size.
Result<const kfd::Node*> GpuMatch::same_gpu(const RenderImage& image) {
  SLUICE_TRY(read_local());
  std::optional<FutexLocked> locked, ledger_locked;
  if (tree_ != nullptr) tree_->lock_into(locked);
  if (const kfd::Node* agreed = agreed_gpu(image.minor)) return agreed;
  const kfd::Node* node = local_.find_gpu(image.gpu_id);
  if (node == nullptr) {
    return Error{
        ENODEV,
        formatted("{} of the image belongs to GPU {}, which is not here, and the image does not describe it; "
                  "restore where that GPU is [SL-R16]",
                  image.node_words(), image.gpu_id)};
  }
  if (tree_ != nullptr) {
    if (tree_->ledger) tree_->ledger->lock_into(ledger_locked);
    agree(image.minor, node->gpu_id);
  }
  return node;
}

GpuMatch::Rooms GpuMatch::rooms() const {
  Rooms rooms;
  for (const kfd::Node& node : local_.nodes) {
    if (!node.is_gpu()) continue;
    if (const auto use = kfd::vram_use(node.drm_render_minor)) rooms[node.gpu_id] = use->room();
  }
  return rooms;
}

void GpuMatch::allocated(const kfd::Node& gpu, std::uint64_t bytes) {
  if (tree_ == nullptr || !tree_->ledger || !follows_ || bytes == 0) return;
  const FutexLocked locked = tree_->ledger->lock();
  tree_->ledger->take_back(gpu.gpu_id, bytes);
}

void GpuMatch::allocated(const VramBytes& bytes) {
  for (const auto& [minor, of_gpu] : bytes) {
    const kfd::Node* source = source_.find_render_minor(minor);
    if (source == nullptr) continue;
    if (const auto gpu = local_gpu(source->gpu_id)) allocated(**gpu, of_gpu);
  }
}

// "0x978f renderD129 (80.0 MiB free)", ...: those that the rules allow and that have enough room.
std::string GpuMatch::others_for(const kfd::Node& source, const kfd::Node& full, std::uint64_t need,
                                 const Rooms& rooms) const {
  std::string names;
  std::size_t named = 0;
  for (const auto& [gpu_id, room] : rooms) {
    if (gpu_id == full.gpu_id || room < need || named == kNamedMax || !can_open(*local_.find_gpu(gpu_id)))
      continue;
    kfd::MatchWishes wishes;
    wishes.fixed = {{source.gpu_id, gpu_id}};
    if (!std::holds_alternative<kfd::Match>(kfd::match_gpus(source_, local_, rules_, wishes))) continue;
    names += (named++ == 0 ? "" : ", ") + kfd::gpu_words(*local_.find_gpu(gpu_id)) + " (" +
             kfd::size_words(room) + " free)";
  }
  return names;
}

Error GpuMatch::explain(const Error& error, const VramBytes& need, const Rooms& before) const {
  if (error.err != ENOMEM) return error;
  std::string missing, enough;
  for (const auto& [minor, bytes] : need) {
    const kfd::Node* source = match_ ? source_.find_render_minor(minor) : nullptr;
    const auto matched = source != nullptr ? local_gpu(source->gpu_id) : Error{ENODEV, {}};
    const kfd::Node* gpu = matched ? *matched : agreed_gpu(minor);
    if (gpu == nullptr || bytes == 0) continue;
    const auto room = before.find(gpu->gpu_id);
    const std::string needs =
        formatted("{} needs {} of VRAM and has ", kfd::gpu_words(*gpu), kfd::size_words(bytes));
    if (room == before.end()) {
      enough += needs + "an unknown amount; ";
    } else if (room->second >= bytes) {
      enough += needs + kfd::size_words(room->second) + "; ";
    } else {
      const std::string others = source != nullptr ? others_for(*source, *gpu, bytes, before) : std::string();
      missing += formatted("{}{} free, {} are missing; ", needs, kfd::size_words(room->second),
                           kfd::size_words(bytes - room->second));
      if (!others.empty()) {
        missing += formatted("these could replace it: {}; choose with {}={}=..., or ", others,
                             kfd::kGpuMapSetting, kfd::gpu_id_text(source->gpu_id));
      } else if (source != nullptr) {
        missing += "no other matching GPU here has room for it; ";
      }
    }
  }
  if (!missing.empty()) return Error{ENOMEM, formatted("GPU {}free VRAM there [SL-R17]", missing)};
  if (!enough.empty())
    return Error{ENOMEM, formatted("{}; GPU {}free VRAM or host memory [SL-R18]",
                                   error.what.substr(0, id_begin(error.what)), enough)};
  return error;
}

}  // namespace sluice::plugin
