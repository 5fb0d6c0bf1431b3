// SPDX-License-Identifier: MIT
// One open render file on its way into the images. Its BOs are listed, waited for and exported, and their
// contents flow while the host does other work. When the host has named the file, the images get their names.
//
// The target's file does not change, except that its BOs have dma-bufs. Main thread only.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "drm/target_file.h"
#include "images/metadata.h"
#include "kfd/topology.h"
#include "plugin/dump/files/dumped_file.h"
#include "plugin/dump/files/process_dump.h"

namespace sluice::plugin {

class RenderDump final : public DumpedFile {
 public:
  // Lists the BOs. `file`: our descriptor of the target's open file of `gpu`'s render node. `holders`: the
  // processes that hold it. `run` is borrowed. Errors: EINVAL, with the handle, for a BO that could not be
  // restored.
  static Result<std::unique_ptr<RenderDump>> list(UniqueFd file, std::vector<pid_t> holders,
                                                  const kfd::Node& gpu, DumpRun& run);

  // The memory of a dma-buf that `holders` have open and no file of the tree has, as its own file. `file`:
  // ours, of `gpu`'s render node; its only handle is `handle`. Errors: as above; EINVAL if it is unknown
  // which process restores it.
  static Result<std::unique_ptr<RenderDump>> of_dmabuf(UniqueFd file, std::uint32_t handle,
                                                       std::vector<pid_t> holders, const kfd::Node& gpu,
                                                       DumpRun& run);

  // Errors: EIO if the GPU has lost its VRAM since the dump first looked (VramWatch).
  Result<void> look_at_vram() const;
  int fd() const override { return file_.get(); }
  // False if the kernel is too old to list BOs.
  bool lists_bos() const { return lists_bos_; }
  bool has_bos() const { return !image_.bos.empty(); }

  // Waits until the BOs are idle and exports them. Once. Errors: ETIMEDOUT if the target's work uses a BO for
  // longer than the kernel lets a job run; EINVAL for memory that cannot be exported.
  Result<void> begin() override;
  // After begin(): a process that holds the file has a /dev/kfd, too.
  bool any_kfd() const { return any_kfd_; }

  DumpContents* contents() override { return contents_.get(); }
  void take_shares() override;
  Result<void> take_contents() override;
  std::string image_name() const override;

  // Takes what the KFD process of the file's holders knows: its GPU's name there, and whether KFD uses this
  // file. Before or after finish(), because files come in order of their numbers.
  Result<void> settle(const ProcessGpu& gpu, const std::vector<pid_t>& kfd_holders);

  // After finish(): the metadata, if not already written as they are now. Errors: EINVAL if they were written
  // differently and there is a key.
  Result<void> write() override;
  void warn_of_loss() const override;

 private:
  RenderDump(UniqueFd file, std::vector<pid_t> holders, DumpRun& run)
      : DumpedFile(std::move(holders), run), file_(std::move(file)) {}
  static std::unique_ptr<RenderDump> make(UniqueFd file, std::vector<pid_t> holders, const kfd::Node& gpu,
                                          DumpRun& run);
  Result<void> list_bos(pid_t pid);
  Result<void> ask_for_kfd();
  Result<void> finish_contents() override;
  Result<RenderBo> bo_of(const drm::GemHandle& handle) const;
  Result<void> add_mappings(RenderBo& bo) const;
  Error refusal(std::uint32_t handle, const char* why) const;
  Error stopped_at(std::uint32_t handle) const;
  Result<void> wait_until_idle(std::uint32_t handle, std::chrono::steady_clock::time_point deadline) const;
  Result<void> check_restoring_process(const std::vector<pid_t>& kfd_holders) const;
  std::string words_of(std::uint32_t handle) const;

  UniqueFd file_;
  RenderImage image_;
  std::vector<std::uint8_t> written_;  // the metadata as written
  bool lists_bos_ = false;
  bool of_dmabuf_ = false;
  bool any_kfd_ = false;
  std::vector<UniqueFd> dmabufs_;           // of the BOs, from begin() to take_contents()
  std::vector<std::size_t> shared_;         // the BOs' numbers in SharedBos
  std::unique_ptr<DumpContents> contents_;  // from begin() on
};

}  // namespace sluice::plugin
