// SPDX-License-Identifier: MIT
// The restore of one task's KFD processes. RESTORE makes their BOs, which are filled from then on; imported
// BOs come later (restore_task.h says when). A task's only thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "base/result.h"
#include "images/kfd_image.h"
#include "kfd/criu_ops.h"
#include "kfd/memory/bo_import.h"
#include "plugin/restore/basis/restore_basis.h"
#include "plugin/restore/gpus/gpu_match.h"
#include "plugin/restore/server/content_channel.h"
#include "plugin/restore/task/device_maps.h"
#include "plugin/restore/task/task_contents.h"

namespace sluice::plugin {

// What a task's restore of files of every kind uses.
struct TaskParts {
  const RestoreBasis& basis;
  GpuMatch gpus{};
  DeviceMaps maps{};
  TaskContents contents;
};

class KfdRestore {
 public:
  explicit KfdRestore(TaskParts& task) : task_(task) {}

  // The descriptor of /dev/kfd for CRIU to take, with all BOs except imported ones. EPERM: the task is in a
  // user namespace of its own. EINVAL: the kernel does not understand the image's private data, or another
  // file of the same process must come first. ENODEV: no GPUs match. Else as kfd::restore().
  Result<UniqueFd> restore(const KfdImage& image, int id);

  // Whether a process that restore() has made will import the memory `shared` and map it on the GPU, by its
  // id in the image, at `address`.
  bool will_map(std::uint32_t shared, std::uint32_t user_gpu_id, std::uint64_t address) const;

  // Imports those BOs; waits for the tasks that make them.
  Result<void> import_bos();

 private:
  struct Import {
    std::size_t index = 0;  // among the BOs of the image
    kfd::BoImport::Bo bo;
  };
  // A process with imports to come.
  struct Importing {
    int id = 0;
    int file = -1;  // borrowed
    KfdImage image;
    std::vector<Import> imports;
  };

  Result<UniqueFd> another_file_of(const KfdImage& image, int id, kfd::KfdDevice own) const;
  Result<std::vector<kfd::RestoreDevice>> devices_of(const KfdImage& image);
  Result<std::vector<kfd::RestoredBo>> make_bos(const kfd::KfdDevice& own, const KfdImage& image,
                                                std::span<const kfd::RestoreDevice> devices);
  Result<void> note_mapped(const KfdImage& image, const BoEntry& bo, std::uint64_t new_offset, int dmabuf);
  Result<ContentRequest> request_of(const KfdImage& image, int id,
                                    std::vector<kfd::RestoredBo> restored) const;
  std::set<std::uint32_t> minors_of_files_to_come(const KfdImage& image) const;
  static Result<std::vector<Import>> imports_of(const KfdImage& image);
  Result<void> import_bo(const Importing& process, kfd::BoImport& kfd, const Import& next);

  TaskParts& task_;
  std::vector<Importing> importing_;
  std::vector<int> restored_ids_;
};

}  // namespace sluice::plugin
