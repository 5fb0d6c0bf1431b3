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
#include "images/files/files.h"
#include "kfd/driver.h"
#include "plugin/contents/local_machine.h"
#include "plugin/host/criu_host.h"

namespace sluice::plugin {

namespace {

constexpr std::size_t kNamedMax = 8;  // GPUs named in an error

// Whether this task can open the GPU's render node: its container has it and allows it.
bool can_open(const kfd::Node& gpu) {
  return ::access(drm::Device::render_node(gpu.drm_render_minor).c_str(), R_OK | W_OK) == 0;
}

}  // namespace

// Reservations are read first, see VramLedger.
std::map<std::uint32_t, kfd::LocalGpu> local_gpus(const kfd::Topology& local, const VramLedger* ledger,
                                                  kfd::VramMeter& vram) {
  std::map<std::uint32_t, kfd::LocalGpu> gpus;
  for (const kfd::Node& node : local.nodes) {
    if (!node.is_gpu()) continue;
    const std::uint64_t reserved = ledger != nullptr ? ledger->reserved_by_others(node.gpu_id) : 0;
    kfd::LocalGpu& gpu = gpus[node.gpu_id];
    gpu.reachable = can_open(node);
    if (const auto use = vram.use(node)) gpu.room = use->room() > reserved ? use->room() - reserved : 0;
  }
  if (std::none_of(gpus.begin(), gpus.end(), [](const auto& gpu) { return gpu.second.reachable; })) {
    for (auto& [gpu_id, gpu] : gpus) gpu.reachable = true;  // so that free VRAM decides
  }
  return gpus;
}

// Once: a task that was given a node keeps it.
Result<void> GpuMatch::read_local() {
  if (local_.nodes.empty()) {
    SLUICE_TRY_ASSIGN(local_, local_topology());
  }
  return {};
}

// Chooses, and tells the tree and other restores before any other can choose.
kfd::TreeChoice GpuMatch::choose(const KfdImage& image) {
  const kfd::ProcessGpus process = process_of(image);
  if (tree_ == nullptr) return kfd::choose_gpus(process, {}, {}, {local_, {}}, rules_);
  std::optional<FutexLocked> locked, ledger_locked;
  tree_->lock_into(locked);
  if (tree_->ledger) tree_->ledger->lock_into(ledger_locked);
  kfd::VramMeter vram(kfd_device_);
  const kfd::LocalGpus local{local_, local_gpus(local_, tree_->ledger.get(), vram)};
  kfd::TreeChoice choice = kfd::choose_gpus(process, tree_->gpus, tree_->agreed(), local, rules_);
  agree(choice.agreed);
  return choice;
}

// REQUIRES: the locks of tree and ledger.
void GpuMatch::agree(const std::vector<kfd::MappedGpu>& pairs) {
  std::vector<kfd::MappedGpu> agreed = tree_->agreed();
  for (const kfd::MappedGpu& pair : pairs) {
    if (!kfd::agree(agreed, pair)) continue;
    tree_->agree(pair);
    const auto need = tree_->gpus.need.find(pair.source_minor);
    if (tree_->ledger && need != tree_->gpus.need.end())
      tree_->ledger->reserve(pair.actual_gpu_id, need->second);
  }
}

Result<void> GpuMatch::match(const KfdImage& image, const kfd::MatchRules& rules) {
  SLUICE_TRY(read_local());
  rules_ = rules;
  kfd::TreeChoice choice = choose(image);
  follows_ = choice.follows;
  if (!follows_) {
    log_line(Level::Info, formatted("process {} cannot have the GPUs of the rest of its tree; it shares no "
                                    "GPU memory, so it is matched by "
                                    "itself",
                                    image.pid));
  }
  if (const auto* refusal = std::get_if<kfd::Refusal>(&choice.outcome)) {
    log_text(Level::Error, refusal->text());
    return choice.refused();
  }
  match_ = std::get<kfd::Match>(std::move(choice.outcome));
  source_ = image.topology;
  for (const kfd::DeviceIds& pair : match_->gpus) {
    if (pair.user_gpu_id == pair.actual_gpu_id) continue;
    log_line(Level::Info, why_moved(pair));
    // kfd_process_kunmap_signal_bo() of amdgpu-dkms 6.0.5 looks for the event page on the dump's GPU, and
    // follows a null pointer where this process has that GPU, but not the page.
    if (local_.find_gpu(pair.user_gpu_id) != nullptr && !kfd::out_of_tree_version().empty())
      log_line(Level::Warning,
               formatted("when process {} ends, AMD's driver may crash the kernel, because the process moved "
                         "away from GPU {} and still sees it; hide that GPU from the process, and restore "
                         "again [SL-R47]",
                         image.pid, kfd::gpu_words(*source_.find_gpu(pair.user_gpu_id))));
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
  const auto need = tree_->gpus.need.find(source.drm_render_minor);
  const auto use = kfd::VramMeter(kfd_device_).use(*same);
  if (need == tree_->gpus.need.end() || !use || use->room() >= need->second) return text;
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
  const kfd::RenderFile file = file_of(image);
  if (const kfd::Node* source = match_ ? kfd::find_gpu_of(file, source_) : nullptr)
    return local_gpu(source->gpu_id);
  SLUICE_TRY(read_local());
  std::optional<FutexLocked> locked, ledger_locked;
  if (tree_ != nullptr) tree_->lock_into(locked);
  SLUICE_TRY_ASSIGN(const kfd::MappedGpu pair,
                    kfd::choose_without_kfd(
                        file, tree_ != nullptr ? tree_->agreed() : std::vector<kfd::MappedGpu>(), local_));
  if (tree_ != nullptr) {
    if (tree_->ledger) tree_->ledger->lock_into(ledger_locked);
    agree({pair});
  }
  return local_.find_gpu(pair.actual_gpu_id);
}

const kfd::Node* GpuMatch::agreed_gpu(std::uint32_t source_minor) const {
  if (tree_ == nullptr) return nullptr;
  for (const kfd::MappedGpu& pair : tree_->agreed()) {
    if (pair.source_minor == source_minor) return local_.find_gpu(pair.actual_gpu_id);
  }
  return nullptr;
}

GpuMatch::Rooms GpuMatch::rooms() const {
  Rooms rooms;
  kfd::VramMeter vram(kfd_device_);
  for (const kfd::Node& node : local_.nodes) {
    if (!node.is_gpu()) continue;
    if (const auto use = vram.use(node)) rooms[node.gpu_id] = use->room();
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
