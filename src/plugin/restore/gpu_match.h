// SPDX-License-Identifier: MIT
// The local GPUs that stand for those of the images, as one task sees them: its device cgroup hides GPUs from
// sysfs and from KFD alike. Nodes stay where they are for as long as the object lives; it does not move.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/metadata.h"
#include "images/vram_need.h"
#include "kfd/matching.h"
#include "kfd/topology.h"
#include "plugin/restore/tree_match.h"

namespace sluice::plugin {

class GpuMatch {
 public:
  GpuMatch() = default;
  GpuMatch(const GpuMatch&) = delete;
  GpuMatch& operator=(const GpuMatch&) = delete;

  // Who else of the tree is matched, and how much VRAM is needed where; borrowed. Without, the task is alone.
  void join(TreeMatch* tree) { tree_ = tree; }

  // Maps the GPUs of the image's machine to local ones. A task has one KFD process, whose image is the last
  // that is matched: those of others, which a render file before it may have had to do with, tell of the same
  // GPUs, but perhaps by other ids. ENODEV after a table that says why.
  Result<void> match(const kfd::KfdImage& image, const kfd::MatchRules& rules);
  bool matched() const { return match_.has_value(); }

  // The local GPU that stands for one of the image, by the id that processes know. ENODEV: none does.
  // REQUIRES: matched().
  Result<const kfd::Node*> local_gpu(std::uint32_t user_gpu_id) const;
  // The local GPU of a render file's image, matched or not.
  Result<const kfd::Node*> gpu_of(const RenderImage& image);

  // REQUIRES: matched().
  const kfd::Topology& local() const { return local_; }

  // VRAM that nobody has on the local GPUs, by gpu_id; those of which it is known.
  using Rooms = std::map<std::uint32_t, std::uint64_t>;
  Rooms rooms() const;
  // Says of an allocation that has failed for lack of memory what is missing where, and which GPUs would do,
  // so that nobody looks for memory of the host's. Errors of other kinds, and of what needs no VRAM, stay as
  // they are. `need`: what was to be allocated, by render minor in the images. `before`: the rooms at that
  // time.
  Error explain(const Error& error, const VramBytes& need, const Rooms& before) const;
  // Of a local GPU was allocated what the tree had yet to allocate.
  void allocated(const kfd::Node& gpu, std::uint64_t bytes);
  void allocated(const VramBytes& bytes);

 private:
  Result<void> read_local();
  kfd::MatchOutcome choose(const kfd::Topology& source, bool follows);
  std::map<std::uint32_t, kfd::LocalGpu> local_gpus() const;
  Result<const kfd::Node*> same_gpu(const RenderImage& image);
  const kfd::Node* agreed_gpu(std::uint32_t source_minor) const;
  void agree(std::uint32_t source_minor, std::uint32_t actual_gpu_id);
  std::string why_moved(const kfd::DeviceIds& pair) const;
  std::string others_for(const kfd::Node& source, const kfd::Node& full, std::uint64_t need,
                         const Rooms& rooms) const;

  TreeMatch* tree_ = nullptr;
  bool follows_ = true;  // has the GPUs that the tree has agreed on, for which its memory is reserved
  kfd::MatchRules rules_;
  kfd::Topology local_;
  kfd::Topology source_;  // with match_: of the image's machine
  std::optional<kfd::Match> match_;
};

}  // namespace sluice::plugin
