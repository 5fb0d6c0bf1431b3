// SPDX-License-Identifier: MIT
#include "plugin/restore/gpu_match.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "drm/device.h"
#include "images/files.h"
#include "kfd/vram_room.h"
#include "plugin/contents/machine.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {

namespace {

constexpr std::size_t kNamedMax = 8;  // GPUs that an error names

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

// Once: who was given a node keeps it.
Result<void> GpuMatch::read_local() {
  if (local_.nodes.empty()) {
    SLUICE_TRY_ASSIGN(local_, local_topology());
  }
  return {};
}

// REQUIRES: nobody else reserves meanwhile. What is reserved is read first, see VramLedger.
std::map<std::uint32_t, kfd::LocalGpu> GpuMatch::local_gpus() const {
  std::map<std::uint32_t, kfd::LocalGpu> gpus;
  for (const kfd::Node& node : local_.nodes) {
    if (!node.is_gpu()) continue;
    const std::uint64_t reserved =
        tree_ != nullptr && tree_->ledger ? tree_->ledger->reserved_by_others(node.gpu_id) : 0;
    kfd::LocalGpu& gpu = gpus[node.gpu_id];
    gpu.reachable = ::access(drm::Device::render_node(node.drm_render_minor).c_str(), R_OK | W_OK) == 0;
    if (const auto use = kfd::vram_use(node.drm_render_minor))
      gpu.room = use->room() > reserved ? use->room() - reserved : 0;
  }
  if (std::none_of(gpus.begin(), gpus.end(), [](const auto& gpu) { return gpu.second.reachable; })) {
    for (auto& [gpu_id, gpu] : gpus) gpu.reachable = true;  // so that room decides
  }
  return gpus;
}

// Chooses, and tells the tree and other restores before anybody else can choose. Who does not follow tells
// nobody.
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
    // GPUs that belong together are chosen together, where this task sees as many as the one that saw most.
    if (tree_->agreed().empty() && holds_all_gpus_of(tree_->widest, image.topology))
      (void)choose(tree_->widest, true);
  }
  kfd::MatchOutcome outcome = choose(image.topology, true);
  const bool agreed = tree_ != nullptr && !tree_->agreed().empty();
  if (std::holds_alternative<kfd::Refusal>(outcome) && agreed && !shares_memory(image)) {
    log_line(Level::Info,
             "process " + std::to_string(image.pid) +
                 " cannot have the GPUs that others of its tree have, and shares no GPU memory; it is "
                 "matched by itself");
    outcome = choose(image.topology, false);
    follows_ = false;
  }
  if (const auto* refusal = std::get_if<kfd::Refusal>(&outcome)) {
    log_text(Level::Error, refusal->text());
    return Error{
        ENODEV,
        std::string("the image's GPUs cannot be matched to local ones (see the table above)") +
            (agreed && shares_memory(image) ? "; processes that share GPU memory need the same GPUs" : "")};
  }
  match_ = std::get<kfd::Match>(std::move(outcome));
  source_ = image.topology;
  for (const kfd::DeviceIds& pair : match_->gpus) {
    if (pair.user_gpu_id != pair.actual_gpu_id) log_line(Level::Info, why_moved(pair));
  }
  return {};
}

// That another GPU stands in for one, and, where that is here, too, what it has free.
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
  if (node == nullptr)
    return Error{ENODEV, "no local GPU stands for GPU " + std::to_string(user_gpu_id) + " of the image"};
  return node;
}

Result<const kfd::Node*> GpuMatch::gpu_of(const RenderImage& image) {
  if (!match_) return same_gpu(image);
  // Of a GPU that the KFD process did not see, the image has the GPU's own id, not one that processes know.
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

// The GPU of a render file of which the task's KFD process tells nothing: what others of the tree have for
// it, else the one of the same gpu_id, which is a hash over the GPU's place and size.
Result<const kfd::Node*> GpuMatch::same_gpu(const RenderImage& image) {
  SLUICE_TRY(read_local());
  std::optional<FutexLocked> locked, ledger_locked;
  if (tree_ != nullptr) tree_->lock_into(locked);
  if (const kfd::Node* agreed = agreed_gpu(image.minor)) return agreed;
  const kfd::Node* node = local_.find_gpu(image.gpu_id);
  if (node == nullptr) {
    return Error{ENODEV, image.node_words() + " of the image belongs to GPU " + std::to_string(image.gpu_id) +
                             ", which is not here, and without a KFD process that sees it the image does not "
                             "say what it was like, so no other can stand in for it"};
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

// "0x978f renderD129 (80.0 MiB free)", ...: those that the rules allow and that have room.
std::string GpuMatch::others_for(const kfd::Node& source, const kfd::Node& full, std::uint64_t need,
                                 const Rooms& rooms) const {
  std::string names;
  std::size_t named = 0;
  for (const auto& [gpu_id, room] : rooms) {
    if (gpu_id == full.gpu_id || room < need || named == kNamedMax) continue;
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
    const std::string needs = kfd::gpu_words(*gpu) + " needs " + kfd::size_words(bytes) + " of VRAM and has ";
    if (room == before.end()) {
      enough += needs + "what its driver does not tell; ";
    } else if (room->second >= bytes) {
      enough += needs + kfd::size_words(room->second) + "; ";
    } else {
      const std::string others = source != nullptr ? others_for(*source, *gpu, bytes, before) : std::string();
      missing += needs + kfd::size_words(room->second) + " free, " + kfd::size_words(bytes - room->second) +
                 " are missing; ";
      if (!others.empty()) {
        missing += "in its place would do: " + others + "; choose with " + kfd::kGpuMapSetting + "=" +
                   kfd::gpu_id_text(source->gpu_id) + "=..., or ";
      } else if (source != nullptr) {
        missing += "no other GPU here that fits has room for it; ";
      }
    }
  }
  if (!missing.empty()) return Error{ENOMEM, "GPU " + missing + "free VRAM there", Topic::Said};
  if (!enough.empty())
    return Error{ENOMEM, error.what + "; GPU " + enough + "free VRAM or host memory", Topic::Said};
  return error;
}

}  // namespace sluice::plugin
