// SPDX-License-Identifier: MIT
// The local GPUs that stand for those of the images, as one task sees them: its device cgroup hides GPUs from
// sysfs and from KFD alike. Nodes stay where they are for as long as the object lives; it does not move.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "images/metadata.h"
#include "kfd/matching.h"
#include "kfd/topology.h"
#include "pipeline/result.h"

namespace sluice::plugin {

class GpuMatch {
 public:
  GpuMatch() = default;
  GpuMatch(const GpuMatch&) = delete;
  GpuMatch& operator=(const GpuMatch&) = delete;

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

 private:
  Result<void> read_local();
  Result<const kfd::Node*> same_gpu(const RenderImage& image);

  kfd::Topology local_;
  kfd::Topology source_;  // with match_: of the image's machine
  std::optional<kfd::Match> match_;
};

}  // namespace sluice::plugin
