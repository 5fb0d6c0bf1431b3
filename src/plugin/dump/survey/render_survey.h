// SPDX-License-Identifier: MIT
// Surveys an open render file: its BOs are listed, waited for and exported. The target's file does not
// change, except that its BOs have dma-bufs.
//
// Main thread only.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "drm/target_file.h"
#include "images/metadata.h"
#include "kfd/topology.h"
#include "plugin/dump/survey/survey.h"

namespace sluice::plugin {

class RenderSurvey {
 public:
  // Lists the BOs. `gpu`: the node's. `basis` and `job` are borrowed. Errors: EINVAL, with the handle, for a
  // BO that could not be restored; EIO if the GPU has lost its VRAM since the dump first looked (VramWatch).
  static Result<RenderSurvey> list(TakenFile taken, const kfd::Node& gpu, const DumpBasis& basis,
                                   const StoppedJob& job);

  // The memory of a dma-buf that `holders` have open and no file of the tree has, as its own file. `file`:
  // ours, of `gpu`'s render node; its only handle is `handle`. Errors: as above; EINVAL if it is unknown
  // which process restores it.
  static Result<RenderSurvey> of_dmabuf(UniqueFd file, std::uint32_t handle, std::vector<pid_t> holders,
                                        const kfd::Node& gpu, const DumpBasis& basis, const StoppedJob& job);

  // False if the kernel is too old to list BOs.
  bool lists_bos() const { return lists_bos_; }
  const std::string& name() const { return file_.name; }

  // Waits until the BOs are idle and exports them. Once. Errors: ETIMEDOUT if the target's work uses a BO for
  // longer than the kernel lets a job run; EINVAL for memory that cannot be exported.
  Result<SurveyedFile> finish() &&;

 private:
  RenderSurvey(UniqueFd file, std::vector<pid_t> holders, const kfd::Node& gpu, const DumpBasis& basis,
               const StoppedJob& job);
  Result<void> list_bos();
  Result<void> look_at_vram() const;
  Result<void> ask_for_kfd();
  Result<RenderBo> bo_of(const drm::GemHandle& handle) const;
  Result<void> add_mappings(RenderBo& bo) const;
  Result<SurveyedBo> export_bo(std::uint32_t number, const RenderBo& bo) const;
  Error refusal(std::uint32_t handle, const char* why) const;
  Error stopped_at(std::uint32_t handle) const;
  std::uint64_t ns_from_now(std::chrono::nanoseconds time) const;
  Result<void> wait_until_idle(std::uint32_t handle, std::uint64_t deadline_ns) const;
  RenderImage& image() { return std::get<RenderImage>(file_.image); }

  const DumpBasis* basis_;
  StoppedJob job_;
  SurveyedFile file_;
  bool lists_bos_ = false;
  bool of_dmabuf_ = false;
};

}  // namespace sluice::plugin
