// SPDX-License-Identifier: MIT
#include "plugin/gpu_match.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "images/files.h"
#include "plugin/criu_host.h"

namespace sluice::plugin {

// Once: who was given a node keeps it.
Result<void> GpuMatch::read_local() {
  if (local_.nodes.empty()) {
    SLUICE_TRY_ASSIGN(local_, kfd::read_topology());
  }
  return {};
}

Result<void> GpuMatch::match(const kfd::KfdImage& image, const kfd::MatchRules& rules) {
  SLUICE_TRY(read_local());
  kfd::MatchOutcome outcome = kfd::match_gpus(image.topology, local_, rules);
  if (const auto* refusal = std::get_if<kfd::Refusal>(&outcome)) {
    log_text(Level::Error, refusal->text());
    return Error{ENODEV, "the image's GPUs cannot be matched to local ones (see the table above)"};
  }
  match_ = std::get<kfd::Match>(std::move(outcome));
  source_ = image.topology;
  return {};
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

// The GPU of a render file of which no KFD process tells what it was like: the one of the same gpu_id, which
// is a hash over the GPU's place and size.
Result<const kfd::Node*> GpuMatch::same_gpu(const RenderImage& image) {
  SLUICE_TRY(read_local());
  const kfd::Node* node = local_.find_gpu(image.gpu_id);
  if (node == nullptr) {
    return Error{ENODEV, image.node_words() + " of the image belongs to GPU " + std::to_string(image.gpu_id) +
                             ", which is not here, and without a KFD process that sees it the image does not "
                             "say what it was like, so no other can stand in for it"};
  }
  return node;
}

}  // namespace sluice::plugin
