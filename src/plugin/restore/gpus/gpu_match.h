// SPDX-License-Identifier: MIT
// The local GPUs that replace those of the images, as one task sees them. Its device cgroup hides GPUs from
// sysfs and from KFD alike. Nodes stay at their address for the object's life; it does not move.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "images/metadata.h"
#include "images/vram_need.h"
#include "kfd/matching/matching.h"
#include "kfd/matching/tree_choice.h"
#include "kfd/memory/vram_room.h"
#include "kfd/topology.h"
#include "plugin/restore/gpus/tree_match.h"

namespace sluice::plugin {

// The facts by which one local GPU is preferred to another, by gpu_id. `ledger`: may be nullptr; its lock is
// held, unless nothing will be reserved.
std::map<std::uint32_t, kfd::LocalGpu> local_gpus(const kfd::Topology& local, const VramLedger* ledger,
                                                  kfd::VramMeter& vram);

class GpuMatch {
 public:
  GpuMatch() = default;
  GpuMatch(const GpuMatch&) = delete;
  GpuMatch& operator=(const GpuMatch&) = delete;

  // The tree's other matches, and how much VRAM is needed where; borrowed. Without it the task is alone.
  // `kfd_device`: this machine's.
  void join(TreeMatch* tree, dev_t kfd_device) {
    tree_ = tree;
    kfd_device_ = kfd_device;
  }

  // Maps the GPUs of the image's machine to local ones. A task has one KFD process, whose image is matched
  // last. Images of other KFD processes, matched earlier for a render file, describe the same GPUs, perhaps
  // by other ids. ENODEV after a table with the reasons.
  Result<void> match(const KfdImage& image, const kfd::MatchRules& rules);
  bool matched() const { return match_.has_value(); }

  // The local GPU for one of the image, by the id that processes know. ENODEV: none. REQUIRES: matched().
  Result<const kfd::Node*> local_gpu(std::uint32_t user_gpu_id) const;
  // The local GPU of a render file's image, matched or not.
  Result<const kfd::Node*> gpu_of(const RenderImage& image);

  // REQUIRES: matched().
  const kfd::Topology& local() const { return local_; }

  // Free VRAM of the local GPUs, by gpu_id, where it is known.
  using Rooms = std::map<std::uint32_t, std::uint64_t>;
  Rooms rooms() const;
  // Adds to an out-of-memory error what is missing where, and which GPUs would do, so that users do not look
  // for host memory. Other errors, and those of allocations without VRAM, stay unchanged. `need`: what was to
  // be allocated, by render minor in the images. `before`: the rooms at that time.
  Error explain(const Error& error, const VramBytes& need, const Rooms& before) const;
  // On a local GPU, memory that the tree needs was allocated.
  void allocated(const kfd::Node& gpu, std::uint64_t bytes);
  void allocated(const VramBytes& bytes);

 private:
  Result<void> read_local();
  kfd::TreeChoice choose(const KfdImage& image);
  const kfd::Node* agreed_gpu(std::uint32_t source_minor) const;
  void agree(const std::vector<kfd::MappedGpu>& pairs);
  std::string why_moved(const kfd::DeviceIds& pair) const;
  std::string others_for(const kfd::Node& source, const kfd::Node& full, std::uint64_t need,
                         const Rooms& rooms) const;

  TreeMatch* tree_ = nullptr;
  dev_t kfd_device_ = 0;
  bool follows_ = true;  // uses the tree's GPUs, where its memory is reserved
  kfd::MatchRules rules_;
  kfd::Topology local_;
  kfd::Topology source_;  // set with match_: of the image's machine
  std::optional<kfd::Match> match_;
};

}  // namespace sluice::plugin
