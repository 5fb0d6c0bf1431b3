// SPDX-License-Identifier: MIT
// The restore of one task's render files. Each is opened on the GPU that replaces its own; its BOs are made
// again under their handles and filled. Imported BOs come later (restore_task.h says when). A task's only
// thread.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/result.h"
#include "drm/gem_restore.h"
#include "images/metadata.h"
#include "plugin/restore/task/kfd_restore.h"

namespace sluice::plugin {

class RenderRestore {
 public:
  // `kfd`: the same task's; borrowed.
  RenderRestore(TaskParts& task, const KfdRestore& kfd) : task_(task), kfd_(kfd) {}

  // The descriptor for CRIU to take, with all BOs except imported ones. ENODEV: no GPU replaces its own.
  // EINVAL: this version of CRIU cannot restore the process' maps.
  Result<UniqueFd> restore(RenderImage image, int id);

  // Imports those BOs; waits for the tasks that make them.
  Result<void> import_bos();

 private:
  // A file that is being restored.
  struct File {
    int id = 0;
    int fd = -1;  // borrowed
    RenderImage image;
    const kfd::Node* gpu = nullptr;
    bool acquired = false;  // it is the one that KFD uses
    std::unique_ptr<drm::GemRestore> gem;
  };

  Result<void> match_gpus_of(const RenderImage& render);
  Result<void> make_bos(File& file);
  Result<UniqueFd> make_bo(File& file, std::size_t index);
  Result<void> import_bo(File& file, const RenderBo& bo);
  bool maps_through_several_files(const RenderImage& image) const;
  drm::GemBo without_maps_of_kfd(const File& file, const RenderBo& bo) const;
  Result<void> note_mapped(const File& file, const RenderBo& bo, int dmabuf);

  TaskParts& task_;
  const KfdRestore& kfd_;
  std::vector<File> importing_;
};

}  // namespace sluice::plugin
