// SPDX-License-Identifier: MIT
#include "plugin/restore/task/restore_task.h"

#include <utility>
#include <variant>

#include "images/files/files.h"

namespace sluice::plugin {

RestoreTask::RestoreTask(const RestoreBasis& basis, std::optional<int> server)
    : parts_{.basis = basis, .contents = TaskContents(basis, server)}, images_(basis.store, basis.plan) {
  parts_.gpus.join(basis.tree_match.get(), basis.kfd_device);
}

Result<Answer> RestoreTask::restore_file(int id) {
  SLUICE_TRY_ASSIGN(UniqueFd file, find_or_make(id));
  if (!file) return Answer();
  parts_.basis.lifeline->note_file();
  return Answer(file.release());
}

Result<UniqueFd> RestoreTask::find_or_make(int id) {
  const RestoreBasis& basis = parts_.basis;
  if (basis.shared) {
    for (const auto* pids : {&basis.plan.kfd_pids, &basis.plan.render_pids}) {
      if (const auto pid = pids->find(id); pid != pids->end()) SLUICE_TRY(make_all(pid->second));
    }
    if (const auto made = made_.find(id); made != made_.end() && made->second) return std::move(made->second);
  }
  SLUICE_TRY_ASSIGN(std::optional<DeviceImage> image, images_.any(id));
  if (!image) return UniqueFd();
  if (const auto* dmabuf = std::get_if<DmaBufImage>(&*image)) {
    if (dmabuf->pid && basis.shared) SLUICE_TRY(make_all(*dmabuf->pid));
    return basis.take_shared(dmabuf->shared);
  }
  SLUICE_TRY_ASSIGN(UniqueFd file, make(std::move(*image), id));
  SLUICE_TRY(import_bos());
  return file;
}

// REQUIRES: not the image of a dma-buf, which is made with a file.
Result<UniqueFd> RestoreTask::make(DeviceImage image, int id) {
  auto* render = std::get_if<RenderImage>(&image);
  SLUICE_TRY_ASSIGN(UniqueFd file, render != nullptr ? render_.restore(std::move(*render), id)
                                                     : kfd_.restore(std::get<KfdImage>(image), id));
  restored_device_ = true;
  return file;
}

// All files of the process, so that others can import what it makes; then its own imports.
Result<void> RestoreTask::make_all(std::uint32_t pid) {
  if (std::exchange(all_made_, true)) return {};
  const RestoreBasis& basis = parts_.basis;
  parts_.maps.set_task(pid);
  SLUICE_TRY(parts_.maps.read_runs(basis.store));
  for (const auto& [id, its_pid] : basis.plan.kfd_pids) {
    if (its_pid != pid) continue;
    SLUICE_TRY_ASSIGN(made_[id], make(basis.plan.kfd_image(id), id));
  }
  for (const auto& [id, its_pid] : basis.plan.render_pids) {
    if (its_pid != pid) continue;
    SLUICE_TRY_ASSIGN(UniqueFd file, make(basis.plan.render_image(id), id));
    if (!is_memory_of_dmabuf(id)) made_[id] = std::move(file);
  }
  return import_bos();
}

Result<void> RestoreTask::import_bos() {
  SLUICE_TRY(kfd_.import_bos());
  return render_.import_bos();
}

Result<Answer> RestoreTask::update_map(const char* path, std::uint64_t address, std::uint64_t old_offset,
                                       std::uint64_t& new_offset, int& fd) {
  if (!restored_device_) return Answer();
  return parts_.maps.update(path, address, old_offset, new_offset, fd);
}

}  // namespace sluice::plugin
